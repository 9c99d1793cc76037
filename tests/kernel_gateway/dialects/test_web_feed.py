"""The feed of the session page, on a real gateway: cells of every dialect, for the tenant alone."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import requests
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from kernel_gateway.http.sockets import REVOKED
from sessions.store.records import Look, read
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import e2b, jupyter, mcp
from tests.kernel_gateway.calls import SHARED, failure, until

Frame = dict[str, Any]


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the wire is the same."""
    return started("process")


def offered(key: str) -> list[str]:
    """Return the subprotocols that the page offers."""
    return ["kernel-gateway", "key." + urlsafe_b64encode(key.encode()).decode().rstrip("=")]


class Page:
    """What a page knows from the feed."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self.connection = connection
        self.name = ""
        self.sessions: dict[str, Frame] = {}
        self.session = ""
        self.cells: dict[int, Frame] = {}
        self.outputs: dict[int, list[Frame]] = {}
        self.codes: dict[int, str] = {}
        self.errors: list[Frame] = []
        self.absent = 0
        self._over = False

    async def send(self, **frame: Any) -> None:
        await self.connection.write_message(json.dumps(frame))

    async def see(self, *numbers: int) -> None:
        self.outputs = {number: self.outputs.get(number, []) for number in numbers}
        await self.send(see=numbers, session=self.session)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                message = await self.connection.read_message()
                assert message is not None, self.connection.close_code
                self._take(json.loads(message))

    def _take(self, frame: Frame) -> None:
        match frame["type"]:
            case "sessions":
                self.sessions = {session["name"]: session for session in frame["sessions"]}
            case "opened":
                self.session, self.cells, self.outputs = frame["session"]["id"], {}, {}
                self.name = frame["session"]["name"]
            case "absent":
                self.absent += 1
            case "cells":
                self.cells |= {cell["number"]: cell for cell in frame["cells"]}
                for number in frame["gone"]:
                    del self.cells[number]
            case "outputs" if frame["cell"] in self.outputs:
                self.codes |= {frame["cell"]: frame["code"]} if "code" in frame else {}
                known = [] if frame["fresh"] else self.outputs[frame["cell"]]
                self.outputs[frame["cell"]] = known + frame["outputs"]
            case "error":
                self.errors.append(frame["error"])

    async def end(self) -> int | None:
        """Read until the connection is closed, and return the close code."""
        async with asyncio.timeout(60):
            while not self._over:
                self._over = await self.connection.read_message() is None
        return self.connection.close_code

    def ended(self, number: int) -> bool:
        return self.cells.get(number, {}).get("state") in {"done", "failed"}

    def text(self, number: int) -> str:
        return "".join(output.get("text", "") for output in self.outputs[number])


@asynccontextmanager
async def watching(
    gateway: Gateway, name: str | None = None, tenant: str = "alice", *, key: str | None = None, query: str = ""
) -> AsyncIterator[Page]:
    """Connect a page that shows a session."""
    request = HTTPRequest(f"{gateway.url.replace('http', 'ws', 1)}/ui/feed{query}")
    connection = await websocket_connect(request, subprotocols=offered(key or KEYS[tenant]), max_message_size=2**26)
    page = Page(connection)
    try:
        if name is not None:
            await page.send(open=name)
        yield page
    finally:
        connection.close()
        await page.end()


async def test_the_key_is_a_subprotocol_that_is_never_repeated(gateway: Gateway) -> None:
    async with watching(gateway) as page:
        assert page.connection.selected_subprotocol == "kernel-gateway"
    for key in ("unknown-key-1", "ключ", ""):
        request = HTTPRequest(f"{gateway.url.replace('http', 'ws', 1)}/ui/feed")
        with pytest.raises(HTTPClientError, match="401"):
            await websocket_connect(request, subprotocols=offered(key))


async def test_cells_of_every_dialect_are_told_with_their_outputs(gateway: Gateway) -> None:
    kernel = gateway.call("POST", "/api/kernels", json={}).json()["id"]

    async def over_http() -> None:
        await asyncio.to_thread(gateway.execute, kernel, "print('over HTTP')")

    async def over_jupyter() -> None:
        async with jupyter.connected(gateway, kernel) as client:
            await client.execute("print('over Jupyter')")

    async def over_mcp() -> None:
        arguments = {"code": "print('over MCP')", "session": kernel}
        wire = mcp.modern("tools/call", name="run_code", arguments=arguments)
        await asyncio.to_thread(mcp.result_of, gateway, wire)

    async with watching(gateway, kernel) as page:
        await page.until(lambda: page.session)
        for number, run in enumerate((over_http, over_jupyter, over_mcp), 1):
            await run()
            await page.until(lambda number=number: page.ended(number))  # type: ignore[misc]  # bound at once
        await page.see(1, 2, 3)
        await page.until(lambda: all(page.outputs[number] for number in (1, 2, 3)))
        assert [page.text(number) for number in (1, 2, 3)] == ["over HTTP\n", "over Jupyter\n", "over MCP\n"]
        assert page.codes[2] == "print('over Jupyter')"
    gateway.call("DELETE", f"/api/kernels/{kernel}")


async def test_cells_of_e2bs_sandboxes_are_told(gateway: Gateway) -> None:
    before = {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]}
    with e2b.boxed(gateway) as box:
        await asyncio.to_thread(box.run, "print('over E2B')")
        names = {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]} - before
        async with watching(gateway) as page:
            await page.until(lambda: names <= page.sessions.keys())
            [name] = [name for name in names if page.sessions[name]["cells"]]
            await page.send(open=name)
            await page.until(lambda: page.ended(1))
            await page.see(1)
            await page.until(lambda: page.outputs[1])
            assert page.text(1) == "over E2B\n"


async def test_output_is_told_while_its_cell_runs_and_only_of_cells_in_view(gateway: Gateway, session: str) -> None:
    code = (
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('over')"
    )
    async with watching(gateway, session) as page:
        running = asyncio.create_task(asyncio.to_thread(gateway.execute, session, code))  # noqa: TID251 - awaited below
        await page.until(lambda: page.cells.get(1, {}).get("state") == "running")
        await page.see(1)
        await page.until(lambda: page.outputs[1])
        assert page.text(1) == "begun\n"
        gateway.call("PUT", f"/v1/sessions/{session}/files/go", data=b"")
        await running
        await page.until(lambda: page.ended(1) and page.text(1) == "begun\nover\n")
        await page.see()
        await asyncio.to_thread(gateway.execute, session, "print('unseen')")
        await page.until(lambda: page.ended(2))
        assert page.outputs == {}


ASKS = "print('Hello', input('Who? '))"


async def answer(
    gateway: Gateway, page: Page, cell: int, text: str | None, other: Frame | None = None
) -> requests.Response:
    """Answer what a cell asks now, as the page does."""
    body = {"session": page.session, "cell": cell, "question": page.cells[cell]["question"]["number"], "input": text}
    path = f"/ui/sessions/{page.name}/input"
    return await asyncio.to_thread(gateway.call, "POST", path, json=body | (other or {}))


async def test_a_question_is_told_and_answered_once(gateway: Gateway, session: str) -> None:
    async with watching(gateway, session) as page:
        body = {"code": f"{ASKS}\n{ASKS}", "wait": False, "interactive": True}
        made = gateway.call("POST", f"/v1/sessions/{session}/execute", json=body)
        assert made.status_code == 202
        await page.until(lambda: page.cells.get(1, {}).get("question"))
        assert page.cells[1]["question"] == {"prompt": "Who? ", "password": False, "number": 1}
        for other in ({"session": "another"}, {"cell": 2}, {"question": 2}):
            assert failure(await answer(gateway, page, 1, "Eve", other)) == (400, "SB002")
        assert (await answer(gateway, page, 1, "Ada")).status_code == 204
        await page.until(lambda: (page.cells[1]["question"] or {}).get("number") == 2)
        assert failure(await answer(gateway, page, 1, "Ada", {"question": 1})) == (400, "SB002")  # sent twice
        assert (await answer(gateway, page, 1, "Bob")).status_code == 204
        await page.until(lambda: page.ended(1))
        assert page.cells[1]["question"] is None
        await page.see(1)
        await page.until(lambda: page.outputs[1])
        assert page.text(1) == "Hello Ada\nHello Bob\n"


async def test_a_question_of_a_jupyter_clients_cell_is_answered_by_the_page_or_the_client(gateway: Gateway) -> None:
    kernel = gateway.call("POST", "/api/kernels", json={}).json()["id"]
    async with watching(gateway, kernel) as page, jupyter.connected(gateway, kernel) as client:
        for number, by_page in ((1, True), (2, False), (3, True)):
            asked = {"code": ASKS, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
            sent = await client.send("shell", "execute_request", asked)
            await page.until(lambda number=number: page.cells.get(number, {}).get("question"))  # type: ignore[misc]
            if by_page:
                assert (await answer(gateway, page, number, "Page")).status_code == 204
            # the client's own answer comes too late where the page was first, and answers no later question either
            await client.send("stdin", "input_reply", {"status": "ok", "value": "Client"})
            seen = await client.of(sent)
            text = "".join(message["content"].get("text", "") for message in seen)
            assert text == ("Hello Page\n" if by_page else "Hello Client\n")
    gateway.call("DELETE", f"/api/kernels/{kernel}")


async def test_a_question_of_a_call_over_mcp_is_answered_on_the_page(gateway: Gateway, session: str) -> None:
    wire = mcp.legacy("tools/call", asks=True, name="run_code", arguments={"session": session, "code": ASKS})
    asked: dict[str, Any] = {}

    def over_mcp() -> dict[str, Any]:
        with mcp.streamed(gateway, wire) as messages:
            asked.update(next(messages))
            reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
            until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")
            gateway.call("POST", "/mcp", json=reply, headers=wire.headers)
            return dict(next(messages)["result"])

    async with watching(gateway, session) as page:
        calling = asyncio.create_task(asyncio.to_thread(over_mcp))  # noqa: TID251 - awaited below
        await page.until(lambda: page.cells.get(1, {}).get("question"))
        assert (await answer(gateway, page, 1, "Ada")).status_code == 204
        assert (await calling)["structuredContent"]["text"] == "Hello Ada\n"


async def test_only_the_tenant_answers(gateway: Gateway, session: str) -> None:
    async with watching(gateway, session) as page:
        gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": ASKS, "wait": False, "interactive": True})
        await page.until(lambda: page.cells.get(1, {}).get("question"))
        body = {"session": page.session, "cell": 1, "question": 1, "input": "Eve"}
        path = f"/ui/sessions/{session}/input"
        assert failure(gateway.call("POST", path, tenant="bob", json=body)) == (404, "SB011")
        assert (await answer(gateway, page, 1, None)).status_code == 204
        await page.until(lambda: page.ended(1))
        assert page.cells[1]["state"] == "failed"  # EOFError


async def test_a_cell_without_a_trace_disappears(gateway: Gateway, session: str) -> None:
    async with watching(gateway, session) as page:
        gateway.execute(session, "1")
        await page.until(lambda: page.ended(1))
        code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
        gateway.call(
            "POST", f"/v1/sessions/{session}/execute", json={"code": code, "store_history": False, "wait": False}
        )
        await page.until(lambda: 2 in page.cells)
        gateway.call("PUT", f"/v1/sessions/{session}/files/go", data=b"")
        await page.until(lambda: 2 not in page.cells)
        assert 1 in page.cells


async def test_another_tenants_session_is_absent(gateway: Gateway) -> None:
    gateway.execute(SHARED, "1")
    async with watching(gateway, SHARED, "bob") as page:
        await page.until(lambda: page.absent)
        assert SHARED not in page.sessions


async def test_a_session_that_is_made_anew_begins_anew(gateway: Gateway, session: str) -> None:
    async with watching(gateway, session) as page:
        gateway.execute(session, "print('first')")
        await page.until(lambda: page.ended(1))
        before = page.session
        gateway.call("DELETE", f"/v1/sessions/{session}")
        await page.until(lambda: page.absent)
        gateway.execute(session, "print('second')")
        await page.until(lambda: page.session != before and page.ended(1))
        await page.see(1)
        await page.until(lambda: page.outputs[1])
        assert page.text(1) == "second\n"


async def test_a_bad_frame_is_refused_and_the_socket_stays_open(gateway: Gateway, session: str) -> None:
    async with watching(gateway) as page:
        for frame in (
            "{",
            "[]",
            '{"open": 1}',
            '{"open": "../x"}',
            '{"see": [0], "more": 1}',
            json.dumps({"see": [1] * 65}),
        ):
            errors = len(page.errors)
            await page.connection.write_message(frame)
            await page.until(lambda errors=errors: len(page.errors) > errors)  # type: ignore[misc]  # bound at once
        assert {error["code"] for error in page.errors} == {"SB002"}
        await page.send(open=session)
        gateway.execute(session, "1")
        await page.until(lambda: page.ended(1))


async def test_watching_is_no_use_of_a_session(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    before = gateway.call("GET", f"/v1/sessions/{session}").json()["last_activity"]
    async with watching(gateway, session) as page:
        await page.until(lambda: page.ended(1))
        await page.see(1)
        await page.until(lambda: page.outputs.get(1) is not None and 1 in page.codes)
    after = gateway.call("GET", f"/v1/sessions/{session}").json()["last_activity"]
    assert after[:19] == before[:19] or abs(float(after[17:23]) - float(before[17:23])) < 0.5


async def test_large_outputs_arrive_whole_in_several_frames(gateway: Gateway, session: str) -> None:
    shown = "display({'text/plain': str(number) * 20_000}, raw=True)"
    code = f"from IPython.display import display\nfor number in range(100): {shown}"
    gateway.execute(session, code)
    async with watching(gateway, session) as page:
        await page.until(lambda: page.ended(1))
        await page.see(1)
        await page.until(lambda: len(page.outputs[1]) == 100)
        assert [output["data"]["text/plain"][:2] for output in page.outputs[1][98:]] == ["98", "99"]


async def test_a_page_that_reads_nothing_harms_nobody(gateway: Gateway, session: str) -> None:
    shown = "display({'text/plain': str(number) * 1_000_000}, raw=True)"
    gateway.execute(session, f"from IPython.display import display\nfor number in range(9): {shown}")
    async with watching(gateway, session) as page, watching(gateway, session) as stuck:
        await page.until(lambda: page.ended(1))
        await stuck.send(see=[1], session=page.session)  # and from here on it reads nothing
        await page.see(1)
        await page.until(lambda: len(page.outputs[1]) == 9)
        for number in range(2, 12):
            await asyncio.to_thread(gateway.execute, session, "print('x' * 100_000)")
            await page.until(lambda number=number: page.ended(number))  # type: ignore[misc]  # bound at once
        await stuck.until(lambda: stuck.ended(11))  # it may go on when it likes, with what there is now
        assert stuck.cells.keys() == page.cells.keys()


async def test_a_page_is_closed_when_its_key_is_revoked(gateway: Gateway, session: str) -> None:
    admin = {"Authorization": f"Bearer {gateway.admin_key()}"}
    made = gateway.call("POST", "/v1/admin/keys", tenant=None, headers=admin, json={"tenant": "alice"}).json()
    gateway.execute(session, "1")
    async with watching(gateway, session, key=made["key"]) as page, watching(gateway, session) as other:
        await page.until(lambda: page.ended(1))
        await other.until(lambda: other.ended(1))
        gateway.call("DELETE", f"/v1/admin/keys/{made['id']}", tenant=None, headers=admin)
        assert await page.end() == REVOKED
        gateway.execute(session, "2")
        await other.until(lambda: other.ended(2))


# -- looks of an admin -----------------------------------------------------------------------------------------


async def test_an_admin_looks_where_that_is_allowed_and_each_look_is_told_and_audited() -> None:
    with gateways.gateway("process", admin_looks="true") as gateway:
        admin = gateway.admin_key()
        gateway.execute("s", "print('seen')")
        async with watching(gateway, "s") as own:
            await own.until(lambda: own.ended(1))
            assert not own.sessions["s"]["looked_at"]
            async with watching(gateway, "s", key=admin, query="?tenant=alice") as look:
                await look.until(lambda: look.ended(1))
                await look.see(1)
                await look.until(lambda: look.outputs[1])
                assert look.text(1) == "seen\n"
                await own.until(lambda: own.sessions["s"]["looked_at"])
            await own.until(lambda: not own.sessions["s"]["looked_at"])
        with pytest.raises(HTTPClientError, match="403"):
            async with watching(gateway, tenant="bob", query="?tenant=alice"):
                pass
        looks = [record.what for record in read(gateway.state_dir / "audit.db") if isinstance(record.what, Look)]
        assert [(look.tenant, look.session, look.dialect) for look in looks] == [
            ("alice", "", "web"),
            ("alice", "s", "web"),
        ]
        assert all(look.key_id for look in looks)


async def test_without_the_setting_no_admin_looks(gateway: Gateway) -> None:
    admin = gateway.admin_key()
    async with watching(gateway, key=admin):  # an admin's own sessions
        pass
    with pytest.raises(HTTPClientError, match="403"):
        async with watching(gateway, key=admin, query="?tenant=alice"):
            pass
