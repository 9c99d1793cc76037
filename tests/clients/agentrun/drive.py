"""Drives the real `agentrun-sdk` in the version of its virtual environment. Run as a script, with a flow's name.

Endpoints and credentials are set by the environment variables that the SDK itself reads.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentrun.integration.builtin.sandbox import CodeInterpreterToolSet
from agentrun.sandbox import (
    ListSandboxesInput,
    PageableInput,
    Sandbox,
    SandboxClient,
    Template,
    TemplateInput,
    TemplateType,
)
from agentrun.utils.config import Config
from agentrun.utils.exception import AgentRunError

#: how versions of the SDK report a missing sandbox
ABSENT = "does not exist|there is no sandbox"
DEFAULT = "code-interpreter-v1"
CODE = TemplateType.CODE_INTERPRETER
BINARY = bytes(range(256)) * 40
#: seconds; the SDK passes it to its control plane as milliseconds, 600 by default, too few for a busy machine
TIMEOUT = 20_000


class Driver:
    """Calls methods of the SDK by name: the plain ones, or their `_async` twins."""

    def __init__(self, *, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.config = Config(timeout=TIMEOUT)
        self.called: set[str] = set()

    async def __call__(self, owner: Any, name: str, *args: Any, **options: Any) -> Any:
        self.called.add(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
        method: Callable[..., Any] = getattr(owner, f"{name}_async" if self.asynchronous else name)
        if "config" in inspect.signature(method).parameters:
            options.setdefault("config", self.config)
        result = method(*args, **options)
        return await result if isinstance(result, Awaitable) else result

    async def refused(self, why: str, owner: Any, name: str, *args: Any, **options: Any) -> str:
        """Check that a call fails for a reason; old versions return most failures instead of raising them.

        Returns:
            the whole text of the failure.
        """
        try:
            result = await self(owner, name, *args, **options)
        except AgentRunError as error:
            told = str(error)
        else:
            assert isinstance(result, dict), result
            assert result["code"] != "SUCCESS", result
            told = result["message"]
        assert re.search(why, told), told
        return told


def texts(reply: dict[str, Any], kind: str) -> list[str]:
    return [item["text"] for item in reply["results"] if item["type"] == kind]


def end(reply: dict[str, Any]) -> str:
    last = reply["results"][-1]
    assert last["type"] == "endOfExecution", reply
    return str(last["status"])


async def templates(call: Driver) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = await call(Sandbox, "create_template", TemplateInput(template_name=name, template_type=CODE, cpu=1.0))
    assert (made.template_name, made.status, made.template_type) == (name, "READY", "CodeInterpreter")
    assert (await call(Sandbox, "get_template", name)).template_id == made.template_id
    changed = TemplateInput(template_name=name, template_type=CODE, description="for a test", memory=1024)
    assert (await call(Sandbox, "update_template", name, changed)).description == "for a test"
    listed = await call(Sandbox, "list_templates", PageableInput(page_number=1, page_size=100))
    assert {name, DEFAULT} <= {template.template_name for template in listed}
    return name


async def contexts(call: Driver, sandbox: Any, again: Any) -> None:
    """Use two contexts in two languages: a sandbox object knows one context at a time, so each context has its own."""
    python = await call(sandbox.context, "create", language="python", cwd="/home/user")
    script = await call(again.context, "create", language="javascript", cwd="/tmp")
    python_id, script_id = python.context_id, script.context_id
    assert python_id != script_id
    assert end(await call(sandbox.context, "execute", code="import os; x = 0; print(os.getcwd())")) == "ok"
    assert end(await call(again.context, "execute", code="let x = 100; await Promise.resolve(); x")) == "ok"
    for step in range(1, 6):
        reply = await call(sandbox.context, "execute", code="x += 1; print('x is', x)")
        assert (texts(reply, "stdout"), end(reply), reply["contextId"]) == ([f"x is {step}"], "ok", python_id)
        reply = await call(again.context, "execute", code="x += 1; console.log(x)", timeout=20)
        assert (texts(reply, "stdout"), end(reply)) == ([str(100 + step)], "ok")
    assert {python_id, script_id} <= {item["id"] for item in await call(sandbox.context, "list")}
    await call(again.context, "get", context_id=script_id)
    await call(again.context, "delete")
    await call.refused("the sandbox has no session", again.context, "execute", code="x", context_id=script_id)


async def results(call: Driver, sandbox: Any) -> None:
    rich = "from IPython.display import HTML, display; display(HTML('<b>bold</b>')); {'a': 1}"
    reply = await call(sandbox.context, "execute", code=rich)
    shown = [item["data"] for item in reply["results"] if item["type"] == "result"]
    assert shown[0]["text/html"] == "<b>bold</b>"
    assert shown[1]["text/plain"] == "{'a': 1}"
    reply = await call(sandbox.context, "execute", code="import sys; print('out'); sys.stderr.write('err'); 1 / 0")
    (error,) = (item for item in reply["results"] if item["type"] == "error")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert (texts(reply, "stdout"), texts(reply, "stderr"), end(reply)) == (["out"], ["err"], "error")
    assert end(await call(sandbox.context, "execute", code="kept = 'still here'")) == "ok"
    reply = await call(sandbox.context, "execute", code="import time; time.sleep(60)", timeout=1)
    assert end(reply) == "timeout", reply
    assert "TimeoutError" in texts(reply, "error")[-1]
    assert texts(await call(sandbox.context, "execute", code="print(kept)"), "stdout") == ["still here"]


async def files(call: Driver, sandbox: Any) -> None:
    place = "/home/user/some where"
    await call(sandbox.file_system, "mkdir", path=place)
    written = await call(sandbox.file, "write", path=f"{place}/ä b.txt", content="grüße\n")
    assert written["size"] == len("grüße\n".encode())
    assert (await call(sandbox.file, "read", path=f"{place}/ä b.txt"))["content"] == "grüße\n"
    reply = await call(sandbox.context, "execute", code=f"print(open({place + '/ä b.txt'!r}).read(), end='')")
    assert texts(reply, "stdout") == ["grüße"]
    listed = await call(sandbox.file_system, "list", path="/home/user", depth=2)
    assert {"some where", "ä b.txt"} <= {entry["name"] for entry in listed["entries"]}
    moved = await call(sandbox.file_system, "move", source=f"{place}/ä b.txt", destination="/tmp/c.txt")
    assert moved["entry"]["path"] == "/tmp/c.txt"
    assert (await call(sandbox.file_system, "stat", path="/tmp/c.txt"))["entry"]["type"] == "file"
    await call(sandbox.file_system, "remove", path="/tmp/c.txt")
    await call.refused("There is no such file", sandbox.file_system, "stat", path="/tmp/c.txt")
    await call.refused("leads out", sandbox.file, "read", path="/home/user/../../etc/passwd")
    with tempfile.TemporaryDirectory() as directory:
        here, back = Path(directory, "here.bin"), Path(directory, "back.bin")
        here.write_bytes(BINARY)
        await call(sandbox.file_system, "upload", local_file_path=str(here), target_file_path="/home/user/up.bin")
        await call(sandbox.file_system, "download", path="/home/user/up.bin", save_path=str(back))
        assert back.read_bytes() == BINARY
    reply = await call(sandbox.context, "execute", code="print(len(open('/home/user/up.bin', 'rb').read()))")
    assert texts(reply, "stdout") == [str(len(BINARY))]
    assert (await call(sandbox.file, "read", path="/home/user/up.bin"))["encoding"] == "base64"


async def processes(call: Driver, sandbox: Any) -> None:
    reply = await call(sandbox.process, "cmd", command="echo out; echo err >&2; pwd; exit 3", cwd="/home/user")
    ended = reply["result"]
    assert (ended["exitCode"], ended["stdout"], ended["stderr"]) == (3, "out\n/home/user\n", "err\n")
    reply = await call(sandbox.process, "cmd", command="sleep 60", cwd="/tmp", timeout=1)
    assert reply["status"] == "timeout"
    await call(sandbox.process, "cmd", command="sleep 300 >/dev/null 2>&1 &", cwd="/tmp")
    running = (await call(sandbox.process, "list"))["items"]
    (sleeper,) = (item for item in running if item["command"].startswith("sleep 300"))
    assert (await call(sandbox.process, "get", pid=sleeper["processId"]))["status"] == "running"
    assert (await call(sandbox.process, "get", pid="1"))["processId"] == "1"
    assert (await call(sandbox.process, "kill", pid=sleeper["processId"]))["stopped"] is True
    assert not [item for item in (await call(sandbox.process, "list"))["items"] if "sleep 300" in item["command"]]


async def everything(call: Driver) -> None:
    """Drive a template and a sandbox through their whole life."""
    template = await templates(call)
    sandbox = await call(Sandbox, "create", CODE, template_name=template, sandbox_idle_timeout_seconds=600)
    assert (await call(sandbox, "check_health"))["status"] == "ok"
    again = await call(Sandbox, "connect", sandbox.sandbox_id, template_type=CODE)
    await contexts(call, sandbox, again)
    await results(call, sandbox)
    await files(call, sandbox)
    await processes(call, sandbox)
    found = await call(Sandbox, "connect", sandbox.sandbox_id)
    reply = await call(found.context, "execute", code="print('implicit')")
    assert texts(reply, "stdout") == ["implicit"]
    await call(sandbox.context, "delete")
    await call(sandbox, "get")
    listed = await call(Sandbox, "list", ListSandboxesInput(status="READY", template_name=template))
    assert [item.sandbox_id for item in listed.sandboxes] == [sandbox.sandbox_id]
    await call(sandbox, "stop")
    stopped = await call(Sandbox, "connect", sandbox.sandbox_id, template_type=CODE)
    assert stopped.status == "TERMINATED"
    await call.refused("it was stopped", stopped.context, "execute", code="1")
    await call(sandbox, "delete")
    assert not (await call(Sandbox, "list", ListSandboxesInput(template_name=template))).sandboxes
    await call(Sandbox, "delete_template", template)


async def shorthands(call: Driver) -> None:
    """Use blocks that clean up after themselves, calls by id, and the SDK's own tools for agents."""
    sandbox = await call(Sandbox, "create", CODE, template_name=DEFAULT)
    assert texts(await _in_blocks(call, sandbox), "stdout") == ["42"]
    client = SandboxClient()
    for name in ("stop_sandbox", "delete_sandbox"):
        await call.refused(ABSENT, client, name, sandbox.sandbox_id)
    made = await call(client, "create_sandbox", DEFAULT)
    assert (await call(client, "get_sandbox", made.sandbox_id)).sandbox_id == made.sandbox_id
    listed = await call(client, "list_sandboxes", ListSandboxesInput(status="READY"))
    assert made.sandbox_id in [item.sandbox_id for item in listed.sandboxes]
    await call(Sandbox, "stop_by_id", made.sandbox_id)
    await call(Sandbox, "stop_by_id", made.sandbox_id)
    await call(Sandbox, "delete_by_id", made.sandbox_id)
    template = await call(Template, "get_by_name", DEFAULT)
    assert template.template_id in [item.template_id for item in await call(Template, "list_templates")]
    tools = CodeInterpreterToolSet(template_name=DEFAULT, sandbox_idle_timeout_seconds=600, config=call.config)
    try:
        told = tools.run_code("import sys; print('out'); sys.stderr.write('err'); 1 / 0")
        assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err", 1)
    finally:
        tools.close()


async def _in_blocks(call: Driver, sandbox: Any) -> Any:
    if call.asynchronous:
        async with sandbox, await sandbox.context.create_async() as context:
            return await context.execute_async(code="print(6 * 7)")
    with sandbox, sandbox.context.create() as context:
        return context.execute(code="print(6 * 7)")


async def warm(call: Driver) -> None:
    """Use sandboxes of the usual template, and of one with the SDK's own figures; the gateway tells which were warm."""
    template = f"t-{uuid.uuid4().hex[:12]}"
    made = TemplateInput(template_name=template, template_type=CODE, environment_variables={"WHO": "me"})
    await call(Sandbox, "create_template", made)
    for name, who in ((DEFAULT, "nobody"), (template, "me")):
        sandbox = await call(Sandbox, "create", CODE, template_name=name, sandbox_idle_timeout_seconds=600)
        await call(sandbox.file, "write", path="/home/user/file", content="text")
        code = "import os; x = open('file').read(); open('/tmp/cell', 'w').write(os.environ.get('WHO', 'nobody'))"
        assert end(await call(sandbox.context, "execute", code=code)) == "ok"
        ended = (await call(sandbox.process, "cmd", command="cat file /tmp/cell", cwd="/home/user"))["result"]
        assert ended["stdout"] == f"text{who}"
        again = await call(Sandbox, "connect", sandbox.sandbox_id, template_type=CODE)
        context = await call(again.context, "create", language="python")
        reply = await call(context, "execute", code="print('x' in globals(), open('/tmp/cell').read(), end='')")
        assert texts(reply, "stdout") == [f"False {who}"]
        await call(sandbox, "delete")
    await call(Sandbox, "delete_template", template)


async def paths(call: Driver) -> None:
    """Use the names of directories that clients expect."""
    sandbox = await call(Sandbox, "create", CODE, template_name=DEFAULT, sandbox_idle_timeout_seconds=600)

    async def run(command: str, cwd: str) -> str:
        return str((await call(sandbox.process, "cmd", command=command, cwd=cwd))["result"]["stdout"])

    assert await run("mkdir -p -- /workspace", "/") == ""
    assert await run("echo one > file; pwd", "/workspace") == "/home/user\n"
    assert await run("pwd", "/usr/lib") == "/usr/lib\n"
    assert await run("echo ~ ~user; cd; pwd; whoami", "/tmp") == "/home/user /home/user\n/home/user\nuser\n"
    await call(sandbox.file_system, "mkdir", path="/workspace")
    for path in ("/workspace/file", "/home/user/file", "~/file", "file"):
        assert (await call(sandbox.file, "read", path=path))["content"] == "one\n", path
    await call(sandbox.file, "write", path="/workspace/made/here", content="two")
    for path in ("/workspace/made", "/home/user/made", "~/made"):
        listed = await call(sandbox.file_system, "list", path=path)
        assert [entry["name"] for entry in listed["entries"]] == ["here"], path
    for cwd, seen in (("/workspace/made", "/home/user/made"), ("/usr/lib", "/usr/lib"), ("~", "/home/user")):
        again = await call(Sandbox, "connect", sandbox.sandbox_id, template_type=CODE)
        context = await call(again.context, "create", language="python", cwd=cwd)
        assert texts(await call(context, "execute", code="import os; print(os.getcwd())"), "stdout") == [seen]
    await call(sandbox, "delete")


async def other_tenants(call: Driver) -> None:
    """Check that another tenant's sandbox, named by `FOREIGN`, gets the same answer as a missing one."""
    foreign, none = os.environ["FOREIGN"], "no-such-sandbox"
    told = [await call.refused(ABSENT, Sandbox, "connect", name, template_type=CODE) for name in (foreign, none)]
    assert told[0].replace(foreign, none) == told[1]
    await call(Sandbox, "get_template", DEFAULT)


async def strangers(call: Driver) -> None:
    """Check that wrong credentials open neither plane."""
    await call.refused("signature is not right", Sandbox, "get_template", DEFAULT)
    # Old versions do not sign requests for this plane, and have no token here.
    await call.refused("key", SandboxClient(), "create_sandbox", DEFAULT)


FLOWS = {flow.__name__: flow for flow in (everything, shorthands, warm, paths, other_tenants, strangers)}

if __name__ == "__main__":
    driver = Driver(asynchronous=sys.argv[2:] == ["async"])
    asyncio.run(FLOWS[sys.argv[1]](driver))
    print("\n".join(sorted(driver.called)))
