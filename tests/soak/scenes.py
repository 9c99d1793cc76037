"""What honest tenants do: scenes over all dialects. Each checks the answers, above all what they say of the state."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.gateways import text_of
from tests.kernel_gateway import jupyter, sockets
from tests.kernel_gateway.agentrun import TEMPLATE
from tests.soak.tenants import Tenant, expect

MIB = 1024**2
#: sessions of a tenant that last over the whole soak
LASTING = ("first", "second")
#: sessions of a tenant that sleep in between
SLEEPERS = 3
#: seconds of idleness after which the culler may end a session, and after which it must have
IDLE, GONE = 3, 60


def count_on(tenant: Tenant, name: str) -> None:
    """Count on in a session: its variables are there."""
    reply = tenant.execute(name, "count = globals().get('count', 0) + 1; print(count)")
    kept, seen = tenant.counts.get(name), int(text_of(reply))
    tenant.counts[name] = seen
    told = (seen, reply["state"], reply["state_reason"])
    expect(
        told == ((1, "new", None) if kept is None else (kept + 1, "preserved", None)), f"{name}: {told} after {kept}"
    )


def counts(tenant: Tenant) -> None:
    """Count on in one of the sessions that last."""
    count_on(tenant, tenant.random.choice(LASTING))


def restarts(tenant: Tenant) -> None:
    """Restart a lasting session: its variables are gone, its files are there."""
    tenant.execute(LASTING[0], "open('kept', 'w').write('kept')")
    tenant.call("POST", f"/v1/sessions/{LASTING[0]}/restart")
    reply = tenant.execute(LASTING[0], "count = 1; (count, open('kept').read())")
    expect((text_of(reply), reply["state"]) == ("(1, 'kept')", "restarted"), reply)
    tenant.counts[LASTING[0]] = 1


def fresh(tenant: Tenant) -> None:
    """Use a new session, from the pool if it has a warm kernel, and end it."""
    name = tenant.new("fresh")
    expect(text_of(tenant.execute(name, "6 * 7")) == "42", "a new session does not count")
    tenant.end(name)


def javascript(tenant: Tenant) -> None:
    """Use another language."""
    name = tenant.new("js")
    tenant.call("POST", "/v1/sessions", json={"name": name, "language": "javascript"})
    expect(text_of(tenant.execute(name, "6 * 7")) == "42", "JavaScript does not count")
    tenant.end(name)


def outputs(tenant: Tenant) -> None:
    """Print a megabyte in a stream of events, and export the notebook."""
    name = tenant.new("outputs")
    answer = tenant.call(
        "POST",
        f"/v1/sessions/{name}/execute",
        json={"code": "for _ in range(64): print('x' * 16_383)"},
        headers={"Accept": "application/x-ndjson"},
    )
    expect(answer.text.count("x") >= MIB - 64, "output is missing")
    expect(len(tenant.call("GET", f"/v1/sessions/{name}/notebook").content) > MIB, "the notebook is not whole")
    tenant.end(name)


def stream(tenant: Tenant) -> None:
    """Use a session's WebSocket."""
    name = tenant.new("stream")
    tenant.execute(name, "x = 6")

    async def talk() -> None:
        async with sockets.connected(tenant.gateway, name, key=tenant.key) as socket:
            expect(await socket.text("print(x * 7)") == "42\n", "the stream does not count")

    tenant.socket(talk)
    tenant.end(name)


def notebook(tenant: Tenant) -> None:
    """Use a kernel as Jupyter's front ends do."""
    kernel = tenant.call("POST", "/api/kernels", json={}).json()["id"]

    async def talk() -> None:
        async with jupyter.connected(tenant.gateway, kernel, key=tenant.key) as client:
            expect(await client.text("print(6 * 7)") == "42\n", "the notebook does not count")

    tenant.socket(talk)
    tenant.call("DELETE", f"/api/kernels/{kernel}")


def contexts(tenant: Tenant) -> None:
    """Use two contexts of a sandbox, which share its files."""
    box = "/sandboxes/" + tenant.call("POST", "/sandboxes", json={"templateName": TEMPLATE}).json()["data"]["sandboxId"]
    one, two = (tenant.call("POST", f"{box}/contexts", json={"language": "python"}).json()["id"] for _ in range(2))
    for context, code in ((one, "open('shared', 'w').write('42')"), (two, "print(open('shared').read())")):
        reply = tenant.call("POST", f"{box}/contexts/execute", json={"contextId": context, "code": code}).json()
    expect(reply["stdout"] == "42\n", reply)
    tenant.call("DELETE", box)


def program(tenant: Tenant) -> None:
    """Run a whole program, as RAGFlow does."""
    code = base64.b64encode(b"def main(x): return {'y': x + 1}").decode()
    answer = tenant.call("POST", "/run", json={"code_b64": code, "language": "python", "arguments": {"x": 41}}).json()
    expect(answer["status"] == "success" and answer["result"]["value"] == {"y": 42}, answer)


def files(tenant: Tenant) -> None:
    """Write a file, list it, read it and delete it."""
    place, content = f"/v1/sessions/{LASTING[1]}/files", tenant.random.randbytes(MIB)
    tenant.call("PUT", f"{place}/data", data=content)
    expect("data" in tenant.call("GET", f"{place}/?list").text, "the file is not listed")
    expect(tenant.call("GET", f"{place}/data").content == content, "the file has another content")
    tenant.call("DELETE", f"{place}/data")


def unread(tenant: Tenant) -> None:
    """Ask three times for a large file, read nothing, and end the session meanwhile."""
    name = tenant.new("unread")
    tenant.execute(name, f"open('big', 'wb').write(bytes({64 * MIB}))")
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(tenant.call("GET", f"/v1/sessions/{name}/files/big", stream=True))
        tenant.end(name)


def leaves(tenant: Tenant) -> None:
    """Leave a session to the culler, and look for those that were left earlier."""
    for name, gone in list(tenant.left.items()):
        if time.monotonic() > gone:
            expect(tenant.ask("GET", f"/v1/sessions/{name}").status_code == 404, f"{name} was not culled")
            del tenant.left[name]
    name = tenant.new("left")
    tenant.call("POST", "/v1/sessions", json={"name": name, "idle_timeout": IDLE})
    tenant.left[name] = time.monotonic() + GONE


def sleeps(tenant: Tenant) -> None:
    """Count on in a session that sleeps whenever it is idle, or will sleep."""
    name = f"sleeper-{tenant.random.randrange(SLEEPERS)}"
    if name not in tenant.counts:
        tenant.call("POST", "/v1/sessions", json={"name": name, "idle_timeout": IDLE, "on_idle": "sleep"})
    count_on(tenant, name)


def undoes(tenant: Tenant) -> None:
    """Return to a checkpoint, and begin another session from it."""
    name = tenant.new("undo")
    path = f"/v1/sessions/{name}"
    tenant.execute(name, "x = 41; open('file', 'w').write('kept')")
    tenant.call("POST", f"{path}/checkpoints", json={"name": "one"})
    tenant.execute(name, "del x; import os; os.remove('file')")
    tenant.call("POST", f"{path}/rollback", json={"to": "one"})
    tenant.call("POST", f"{path}/branch", json={"as": f"{name}-b", "from": "one"})
    for session, state in ((name, "rolled_back"), (f"{name}-b", "preserved")):
        reply = tenant.execute(session, "x += 1; (x, open('file').read())")
        expect((text_of(reply), reply["state"]) == ("(42, 'kept')", state), reply)
        tenant.end(session)


def crashes(tenant: Tenant) -> None:
    """End the kernel of a session with automatic checkpoints: only that cell is lost."""
    name = tenant.new("crash")
    tenant.call("POST", "/v1/sessions", json={"name": name, "checkpoints": "auto"})
    tenant.execute(name, "x = 42")
    code = {"code": "x = 0; import os; os._exit(1)"}
    crash = tenant.call("POST", f"/v1/sessions/{name}/execute", json=code).json()
    expect((crash["status"], crash["state"]) == ("died", "rolled_back"), crash)
    expect(text_of(tenant.execute(name, "x")) == "42", "more than the cell is lost")
    tenant.end(name)


def retries(tenant: Tenant) -> None:
    """Send a request twice under one key: it runs once."""
    name = tenant.new("retries")
    again = {"code": "n = globals().get('n', 0) + 1; n", "idempotency_key": name}
    replies = [tenant.execute(name, **again) for _ in range(2)]
    expect([text_of(reply) for reply in replies] == ["1", "1"], replies)
    tenant.end(name)


#: all scenes; the first is played as often as all others together
SCENES: tuple[Callable[[Tenant], None], ...] = (
    counts,
    restarts,
    fresh,
    javascript,
    outputs,
    stream,
    notebook,
    contexts,
    program,
    files,
    unread,
    leaves,
    sleeps,
    undoes,
    crashes,
    retries,
)
WEIGHTS = (len(SCENES) - 1, *[1] * (len(SCENES) - 1))
