"""Code calls the tools of the operator's servers, on real gateways: a real MCP server, and a hostile one."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_gateway.tools.servers import PER_TENANT
from sessions.store.records import CallBegin, CallEnd, read
from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway import e2b, mcp
from tests.kernel_gateway.jupyter import connected
from tests.kernel_gateway.tools.conftest import BAD, TOKEN
from tests.kernel_gateway.tools.hostile_server import ASKED, STOLEN

process_only = pytest.mark.parametrize("served", ["process"], indirect=True)


@pytest.fixture
def session(served: Gateway) -> str:
    """A name that no session has yet."""
    return f"test-{secrets.token_hex(4)}"


def _caught(call: str) -> str:
    return f"import tools\ntry:\n    print({call})\nexcept Exception as error:\n    print(type(error).__name__, error)"


def test_the_example_of_the_page_works(served: Gateway, session: str) -> None:
    page = (Path(__file__).parents[3] / "docs/api.md").read_text()
    example = "import tools" + page.partition("```python\nimport tools")[2].partition("```")[0]
    assert served.text(session, f"{example}\nprint(rows, search is not None)") == (
        "{'rows': ['oolong 0', 'oolong 1']} True\n"
    )


def test_code_calls_a_tool_of_the_operators_server(served: Gateway, session: str) -> None:
    code = (
        "import tools\nfrom tools import tea\nfrom tools.tea import search\n"
        "print(search('oolong', limit=2), tea.greet(name='Ann'), getattr(tea, 'get-size')('four'))\n"
        "print(search.__doc__, search, dir(tools.tea))\nprint(await search.aio('a'))"
    )
    assert served.text(session, code) == (
        "{'rows': ['oolong 0', 'oolong 1']} hello Ann 4\n"
        "Find rows. <tool search(query, limit)> ['broken', 'get-size', 'greet', 'long', 'search', 'slow']\n"
        "{'rows': ['a 0', 'a 1', 'a 2']}\n"
    )
    assert served.text(session, "from tools.tea import *\nprint(greet('Bo'))") == "hello Bo\n"
    assert served.text(session, "print(search('later cell', limit=1))") == "{'rows': ['later cell 0']}\n"


@process_only
def test_code_calls_a_tool_over_mcp_and_e2b(served: Gateway, session: str) -> None:
    greets = "from tools import tea; tea.greet('Ann')"
    answer = mcp.call(served, "run_code", session=session, code=greets)
    assert answer["structuredContent"]["result"] == "'hello Ann'"
    with e2b.boxed(served) as box:
        assert box.text(greets) == "hello Ann"


@process_only
async def test_cells_of_jupyters_websocket_call_tools_and_no_client_sees_the_calls(
    served: Gateway, session: str
) -> None:
    await asyncio.to_thread(served.execute, session, "1")
    async with connected(served, session) as client:
        seen = await client.execute("from tools import tea; print(tea.greet('Ann'))")
        shown = [message["content"]["text"] for message in seen if message["header"]["msg_type"] == "stream"]
        assert shown == ["hello Ann\n"]
        assert "tool_call" not in {message["header"]["msg_type"] for message in seen}
        assert await client.text("print(tea.greet('Bo'))") == "hello Bo\n"
    records = list(read(served.state_dir / "audit.db"))
    assert [
        each.what.tool for each in records if isinstance(each.what, CallBegin) and each.what.session == session
    ] == [
        "greet",
        "greet",
    ]


#: publishes calls that nobody waits for
FLOODS = """
from tools import tea
for n in range(10_001):
    tea._calls._publish(tea._calls._cell, {"call": str(n), "server": "none", "name": "x", "arguments": {}})
import time; time.sleep(100)
"""


@process_only
async def test_a_cell_of_jupyters_websocket_that_floods_calls_is_stopped(served: Gateway, session: str) -> None:
    await asyncio.to_thread(served.execute, session, "1")
    async with connected(served, session) as client:
        assert "called tools more than 10000 times" in await client.text(FLOODS)
        assert await client.text("print(tea.greet('Bo'))") == "hello Bo\n"


@process_only
def test_a_credential_may_be_in_a_file_and_a_wrong_one_is_refused(served: Gateway, session: str) -> None:
    assert served.text(session, "from tools import filed; print(filed.greet('Ann'))") == "hello Ann\n"
    assert "ToolError the server stranger cannot be used" in served.text(session, _caught("tools.stranger.greet('a')"))


@process_only
def test_only_tenants_of_the_list_see_and_call_a_server(served: Gateway, session: str) -> None:
    assert "tea" in served.text(session, "import tools; print(dir(tools))")
    assert "'tea'" not in served.text(session, "import tools; print(dir(tools))", tenant="bob")
    forged = "from tools import down\nprint(down._calls.call)\nwith down._calls.listing('tea') as answer:\n"
    forged += "    try:\n        print(answer.result())\n    except Exception as error:\n        print(error)"
    assert "there is no server of tools 'tea'" in served.text(session, forged, tenant="bob")
    assert "get-size" in served.text(session, forged), "control"


@process_only
def test_errors_of_a_tool_are_exceptions_of_the_cell(served: Gateway, session: str) -> None:
    assert "ToolError" in (told := served.text(session, _caught("tools.tea.broken()")))
    assert "no tea today" in told
    assert "no tool 'none'" in served.text(session, _caught("tools.tea.none()"))
    assert "more than 1048576" in served.text(session, _caught("len(tools.tea.long(2_000_000))"))
    assert served.text(session, _caught("len(tools.tea.long(1_000_000))")) == "1000000\n"


@process_only
def test_a_server_is_not_asked_before_code_uses_it(served: Gateway, session: str) -> None:
    ASKED.clear()
    assert served.text(session, "from tools import down, hangs; print(down, hangs)").startswith("<tools of")
    assert not ASKED
    assert "the server down cannot be used" in served.text(session, _caught("tools.down.x()"))
    served.text(session, _caught("tools.hangs.x"))
    assert "hangs" in ASKED, "control"


@process_only
@pytest.mark.parametrize("way", BAD)
def test_a_hostile_server_harms_nobody_and_the_cell_is_told(served: Gateway, session: str, way: str) -> None:
    listed = served.text(session, _caught(f"tools.{way}.x"))
    assert listed.startswith("ToolError")
    assert BAD[way] in listed
    # Code may call what was never listed; forged here as hostile code would.
    described = {"name": "x", "description": "", "parameters": []}
    forged = f"tools.tea.greet.__class__(tools.tea._calls, {described!r}, {way!r})"
    called = served.text(session, _caught(f"{forged}()"))
    assert called.startswith("ToolError")
    assert TOKEN not in listed + called
    assert not STOLEN
    assert served.text(session, "from tools import tea; print(tea.greet('still'))") == "hello still\n"
    assert not served.errors()


@process_only
def test_an_interrupt_and_the_deadline_end_a_call_and_the_server_is_left(served: Gateway, session: str) -> None:
    reply = served.execute(session, "from tools import tea\ntea.slow(20)", timeout=1)
    assert reply["status"] == "timeout"
    assert served.text(session, "print(tea.greet('next'))") == "hello next\n"


@process_only
def test_calls_beyond_the_bound_wait_for_their_turn(served: Gateway, session: str) -> None:
    code = (
        "import asyncio\nfrom tools import tea\n"
        f"ends = await asyncio.gather(*(tea.slow.aio(0.5) for _ in range({2 * PER_TENANT})))\n"
        "print(len(ends), max(end['most'] for end in ends))"
    )
    assert served.text(session, code) == f"{2 * PER_TENANT} {PER_TENANT}\n"


#: lines that look for the token, whose halves are in `A` and `B`, in all that the kernel's process has
LOOK = """
import gc, os
def found(token):
    places = {"environment": str(dict(os.environ)), "command": open("/proc/self/cmdline").read()}
    places["first environment"] = open("/proc/self/environ").read()
    names = [name for name, text in places.items() if token in text]
    for each in gc.get_objects():
        parts = list(each.values()) if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else ()
        names += ["object" for part in parts if isinstance(part, str) and token in part]
    return sorted(set(names))
print(found(A + B))
"""


def test_the_credential_never_reaches_the_sandbox(served: Gateway, session: str) -> None:
    half = len(TOKEN) // 2
    served.text(session, f"A, B = {TOKEN[:half]!r}, {TOKEN[half:]!r}")
    served.text(session, "from tools import tea, filed\ntea.greet('a'); filed.greet('b'); dir(tea)")
    served.text(session, _caught("tools.repeats.x"))
    assert served.text(session, LOOK) == "[]\n"
    served.text(session, "import os; os.environ['PLANTED'] = A + B; planted = [A + B]")
    assert served.text(session, LOOK) == "['environment', 'object']\n", "control"
    assert TOKEN not in served.log.read_text()
    for database in served.state_dir.glob("*.db*"):
        assert TOKEN.encode() not in database.read_bytes()


@process_only
def test_each_call_is_audited_and_counted_without_its_arguments(served: Gateway, session: str) -> None:
    served.text(session, "from tools import tea; tea.greet('a-secret-argument')")
    records = list(read(served.state_dir / "audit.db"))
    calls = {record.execution: record.what for record in records if isinstance(record.what, CallBegin)}
    number, begin = next((number, what) for number, what in calls.items() if what.session == session)
    assert (begin.tenant, begin.server, begin.tool) == ("alice", "tea", "greet")
    assert begin.argument_bytes == len('{"name":"a-secret-argument"}')
    assert begin.caller in {record.execution for record in records} - calls.keys()
    (end,) = [record.what for record in records if record.execution == number and isinstance(record.what, CallEnd)]
    assert (end.outcome, end.answer_bytes) == ("ok", len('"hello a-secret-argument"'))
    assert b"a-secret-argument" not in (served.state_dir / "audit.db").read_bytes()
    metrics = served.call("GET", "/metrics", tenant="alice").text
    assert 'kernel_gateway_tool_calls_total{outcome="ok",server="tea"}' in metrics
    command = [sys.executable, "-m", "kernel_gateway", "audit", "--state-dir", str(served.state_dir)]
    printed = subprocess.run([*command, "--session", session], check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line.get("tool", line.get("outcome")) for line in lines] == [None, "greet", "ok", "ok"]


#: the command line, in an environment without the libraries of the extra `mcp`
LACKS = """
import sys
sys.modules |= dict.fromkeys(["mcp", "mcp_types", "httpx2"])
from kernel_gateway.cli import main
sys.exit(main())
"""
WITHOUT = (sys.executable, "-c", LACKS)


def test_without_the_extra_the_gateway_serves_and_speaks_mcp_itself() -> None:
    with gateways.gateway("process", command=WITHOUT) as gateway:
        answer = mcp.call(gateway, "run_code", code="40 + 2")
        assert answer["structuredContent"]["result"] == "42"


def test_without_the_extra_servers_of_tools_are_refused_at_the_start(tmp_path: Path) -> None:
    servers = json.dumps({"tea": {"url": "http://127.0.0.1:9/mcp", "tenants": ["*"]}})
    command = [*WITHOUT, "serve", "--isolation", "process", "--state-dir", str(tmp_path), "--port", "0"]
    ran = subprocess.run([*command, "--tool-servers", servers], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (2, "")
    [told] = [line for line in ran.stderr.splitlines() if line.startswith("kernel-gateway: ")]
    assert "tool_servers needs `pip install 'sandboxed-kernel-gateway[mcp]'`" in told
    assert told.endswith("(SB002)")
    assert "Traceback" not in ran.stderr
