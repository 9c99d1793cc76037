"""The Jupyter dialect over REST and WebSocket, on real gateways."""

from __future__ import annotations

import json
import re
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
import requests
from requests import Response
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from kernel_gateway.dialects.jupyter.framing import V1
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import DAWDLES, ENDS_FIRST, process_only, until
from tests.kernel_gateway.calls import failure as failure_of
from tests.kernel_gateway.jupyter import LEGACY, connected, upgraded
from tests.tiers import some


def message_of(failure: Any) -> tuple[int, str]:
    """Return status and code of a failure, and check the fields that Jupyter's clients display."""
    assert failure.json()["message"]
    assert failure.json()["reason"]
    status, code = failure_of(failure)
    return status, code


# -- REST ------------------------------------------------------------------------------------------------------


@process_only
def test_clients_get_version_kernelspecs_identity_and_status(gateway: Gateway) -> None:
    assert set(gateway.call("GET", "/api").json()) == {"version"}
    assert gateway.call("GET", "/api/").status_code == 200
    specs = gateway.call("GET", "/api/kernelspecs").json()
    assert specs["default"] == "python3"
    model = specs["kernelspecs"]["python3"]
    assert model["spec"]["language"] == "python"
    assert isinstance(model["spec"]["argv"], list)
    assert gateway.call("GET", "/api/kernelspecs/python3").json() == model
    logo = gateway.call("GET", model["resources"]["logo-svg"])
    assert (logo.headers["Content-Type"], logo.content[:5]) == ("image/svg+xml", b"<svg ")
    for absent in ("/kernelspecs/python3/kernel.json", "/kernelspecs/python3/..%2fkernel.json", "/kernelspecs/cobol/x"):
        assert message_of(gateway.call("GET", absent))[0] == 404
    assert message_of(gateway.call("GET", "/api/kernelspecs/cobol"))[0] == 404
    assert gateway.call("GET", "/api/me").json()["identity"]["username"] == "alice"
    assert gateway.call("GET", "/api/status").json()["kernels"] >= 0
    for absent in ("/api/terminals", "/api/contents/nothing", "/api/nothing/at/all"):
        assert message_of(gateway.call("GET", absent))[0] == 404


@process_only
def test_a_client_sets_how_long_its_kernel_may_be_idle(gateway: Gateway) -> None:
    def start(seconds: str) -> Response:
        return gateway.call("POST", "/api/kernels", json={"env": {"KERNEL_IDLE_TIMEOUT": seconds}})

    made = start("1234.5").json()["id"]
    assert gateway.call("GET", f"/v1/sessions/{made}").json()["idle_timeout"] == 1234.5
    gateway.call("DELETE", f"/api/kernels/{made}")
    for wrong in ("0", "-1", "nan", "1e3", "3601", ""):
        assert message_of(start(wrong)) == (400, "SB002"), wrong


def test_a_kernel_lives_and_ends(gateway: Gateway) -> None:
    made = gateway.call("POST", "/api/kernels", data='{"name": "python3", "env": {"KERNEL_USERNAME": "me"}}')
    assert made.status_code == 201
    model = made.json()
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert made.headers["Location"] == f"/api/kernels/{model['id']}"
    assert re.fullmatch(r"\w+-\w+-\w+-\w+-\w+", model["id"])
    datetime.strptime(model["last_activity"], "%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: DTZ007 - as clients do
    assert model["id"] in [kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()]
    assert gateway.call("GET", f"/api/kernels/{model['id']}").json()["name"] == "python3"
    assert gateway.call("POST", f"/api/kernels/{model['id']}/interrupt").status_code == 204
    assert gateway.call("POST", f"/api/kernels/{model['id']}/restart").json()["id"] == model["id"]
    assert gateway.call("DELETE", f"/api/kernels/{model['id']}").status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/restart")):
        assert message_of(gateway.call(method, f"/api/kernels/{model['id']}{path}")) == (404, "SB011")


@process_only
def test_kernels_and_sessions_are_the_same_for_their_tenant_only(gateway: Gateway, session: str, kernel: str) -> None:
    gateway.execute(session, "x = 1")
    listed = {model["id"] for model in gateway.call("GET", "/api/kernels").json()}
    assert kernel in listed
    assert kernel in [one["name"] for one in gateway.call("GET", "/v1/sessions").json()["sessions"]]
    assert gateway.text(kernel, "6 * 7") == "42"  # the native API, on a kernel that the Jupyter API has started
    gateway.call("DELETE", f"/v1/sessions/{session}")
    (gone,) = listed - {model["id"] for model in gateway.call("GET", "/api/kernels").json()}
    assert gateway.call("GET", f"/api/kernels/{gone}").status_code == 404
    assert gateway.call("GET", "/api/kernels", tenant="bob").json() == []
    assert message_of(gateway.call("GET", f"/api/kernels/{kernel}", tenant="bob")) == (404, "SB011")


@process_only
@pytest.mark.parametrize(
    "body", ['{"name": "ruby"}', '{"kernel_id": "../x"}', '{"env": {"LD_PRELOAD": "x"}}', "[1]", "{", '{"name": 1}']
)
def test_an_invalid_body_starts_no_kernel(gateway: Gateway, body: str) -> None:
    assert message_of(gateway.call("POST", "/api/kernels", data=body)) == (400, "SB002")


@process_only
def test_a_kernel_may_be_asked_for_by_its_id(gateway: Gateway) -> None:
    wanted = str(uuid.uuid4())
    for _ in range(2):
        for body in ({"kernel_id": wanted}, {"kernel_id": wanted, "name": "python3"}):
            assert gateway.call("POST", "/api/kernels", json=body).json()["id"] == wanted
    other = gateway.call("POST", "/api/kernels", json={"kernel_id": wanted, "name": "bash"})
    assert message_of(other) == (409, "SB012")
    assert gateway.call("GET", f"/api/kernels/{wanted}").json()["name"] == "python3"
    gateway.call("DELETE", f"/api/kernels/{wanted}")


@process_only
def test_a_notebook_has_a_kernel(gateway: Gateway) -> None:
    asked = {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
    made = gateway.call("POST", "/api/sessions", json=asked)
    assert made.status_code == 201
    book = made.json()
    assert (book["path"], book["notebook"]["path"], book["kernel"]["name"]) == ("a.ipynb", "a.ipynb", "python3")
    assert gateway.call("POST", "/api/sessions", json=asked).json()["id"] == book["id"]
    path = f"/api/sessions/{book['id']}"
    assert gateway.call("PATCH", path, json={"path": "b.ipynb"}).json()["path"] == "b.ipynb"
    other = gateway.call("PATCH", path, json={"kernel": {"name": "python3"}}).json()["kernel"]["id"]
    assert other != book["kernel"]["id"]
    assert gateway.call("GET", f"/api/kernels/{book['kernel']['id']}").status_code == 404
    assert message_of(gateway.call("PATCH", path, json={"kernel": {"id": str(uuid.uuid4())}})) == (400, "SB002")
    assert [one["id"] for one in gateway.call("GET", "/api/sessions").json()] == [book["id"]]
    assert gateway.call("GET", "/api/sessions", tenant="bob").json() == []
    assert gateway.call("GET", path, tenant="bob").status_code == 404
    assert gateway.call("DELETE", path).status_code == 204
    assert gateway.call("GET", f"/api/kernels/{other}").status_code == 404
    assert gateway.call("GET", path).status_code == 404
    long = "a" * 5000
    for bad in ({"type": "notebook"}, {"type": "notebook", "path": long}, {"type": long, "path": "a.ipynb"}):
        assert message_of(gateway.call("POST", "/api/sessions", json=bad)) == (400, "SB002")


@process_only
def test_a_notebook_gets_the_kernel_that_its_client_names(gateway: Gateway) -> None:
    def notebook(**asked: Any) -> Response:
        return gateway.call(
            "POST", "/api/sessions", json={"path": f"{uuid.uuid4()}.ipynb", "type": "notebook", **asked}
        )

    first, second = str(uuid.uuid4()), gateway.call("POST", "/api/kernels", json={}).json()["id"]
    made = notebook(kernel={"id": first, "name": "python3"}).json()
    assert made["kernel"]["id"] == first  # a new kernel with this id
    shared = notebook(kernel={"id": first}).json()
    patched = gateway.call("PATCH", f"/api/sessions/{made['id']}", json={"kernel": {"id": second}}).json()
    assert patched["kernel"]["id"] == second
    assert gateway.call("GET", f"/api/kernels/{first}").status_code == 200  # another notebook uses it
    gateway.call("PATCH", f"/api/sessions/{shared['id']}", json={"kernel": {"id": second}})
    assert message_of(gateway.call("GET", f"/api/kernels/{first}")) == (404, "SB011")
    assert gateway.call("GET", f"/api/kernels/{first}").json()["message"] == f"Kernel does not exist: {first}"
    assert notebook(kernel={"name": "cobol"}).status_code == 501
    older = gateway.call("POST", "/api/sessions", json={"notebook": {"name": "older.ipynb"}, "kernel": {"id": second}})
    assert (older.json()["path"], older.json()["type"]) == ("older.ipynb", "notebook")
    gateway.call("DELETE", f"/api/kernels/{second}")


@process_only
def test_a_kernel_id_that_no_request_could_name_is_replaced_in_a_notebook_session(gateway: Gateway) -> None:
    asked = {"notebook": {"path": "any.ipynb"}, "kernel": {"name": "python", "id": "foo"}}
    made = gateway.call("POST", "/api/sessions", json=asked)
    assert made.status_code == 201
    kernel = made.json()["kernel"]["id"]
    assert gateway.call("GET", f"/api/kernels/{kernel}").status_code == 200
    gateway.call("DELETE", f"/api/kernels/{kernel}")


@process_only
def test_a_client_learns_which_permissions_it_has(gateway: Gateway) -> None:
    def permissions(text: str) -> Response:
        return gateway.call("GET", "/api/me", params={"permissions": text})

    assert permissions("").json()["permissions"] == {"updatable_fields": []}
    asked = {"kernels": ["read", "execute"]}
    assert permissions(json.dumps(asked)).json()["permissions"] == asked | {"updatable_fields": []}
    for wrong in ("[]", "x", '{"kernels": "read"}', '{"kernels": [1]}'):
        assert message_of(permissions(wrong)) == (400, "SB002"), wrong


def test_variables_of_the_client_reach_the_kernel(gateway: Gateway) -> None:
    env = {"KERNEL_FLAVOUR": "mint", "PLAIN": "1", "KERNEL_USERNAME": "me", "KERNEL_LAUNCH_TIMEOUT": "40"}
    env |= {"KERNEL_NETWORK": "mine"}  # the gateway has a variable of this name
    env |= {"KERNEL_GATEWAY_URL": gateway.url, "KERNEL_GATEWAY_KEY": "secret"}  # of our command line
    kernel = gateway.call("POST", "/api/kernels", json={"env": env}).json()["id"]
    shown = "import os; os.environ.get('KERNEL_NETWORK') != 'mine' and os.environ.pop('KERNEL_NETWORK', None)\n"
    shown += "sorted(name for name in os.environ if name.startswith('KERNEL_') or name == 'PLAIN')"
    assert gateway.text(kernel, shown) == "['KERNEL_FLAVOUR', 'KERNEL_GATEWAY_SESSION', 'PLAIN']"
    gateway.call("DELETE", f"/api/kernels/{kernel}")


@process_only
@pytest.mark.parametrize("how", ["directory", "path"])
async def test_the_next_kernel_of_a_notebook_tells_once_that_the_gateway_ended_the_last_one(
    gateway: Gateway, how: str
) -> None:
    place = f"/home/ada/{uuid.uuid4()}"

    def started() -> str:
        if how == "path":
            asked = {"path": place, "type": "notebook"}
            return str(gateway.call("POST", "/api/sessions", json=asked).json()["kernel"]["id"])
        env = {"KERNEL_WORKING_DIR": place}  # as Jupyter Server does with --gateway-url
        return str(gateway.call("POST", "/api/kernels", json={"env": env}).json()["id"])

    first = started()
    admin = {"Authorization": f"Bearer {gateway.admin_key()}"}
    ended = gateway.call("DELETE", f"/v1/admin/sessions/alice/{first}", headers=admin, tenant=None)
    assert ended.status_code == 204
    second = started()
    async with connected(gateway, second) as client:
        told = await client.text("print('x' in dir())")
        assert told.startswith("kernel-gateway: the variables of earlier cells are gone: ")
        assert f"an earlier kernel of {place} has ended: the session was ended by an admin\n" in told
        assert await client.text("print(2)") == "2\n"
    gateway.call("DELETE", f"/api/kernels/{second}")
    third = started()
    async with connected(gateway, third) as client:
        assert await client.text("print(3)") == "3\n", "the client itself has ended the second"
    gateway.call("DELETE", f"/api/kernels/{third}")


@process_only
def test_two_requests_for_one_path_at_once_share_one_kernel(gateway: Gateway) -> None:
    asked = {"path": "at-once.ipynb", "type": "notebook"}
    before = {kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: gateway.call("POST", "/api/sessions", json=asked).json(), range(2)))
    assert answers[0]["id"] == answers[1]["id"]
    after = {kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()}
    assert after - before == {answers[0]["kernel"]["id"]}
    gateway.call("DELETE", f"/api/sessions/{answers[0]['id']}")


@process_only
def test_a_notebook_session_ends_with_its_kernel(gateway: Gateway) -> None:
    book = gateway.call("POST", "/api/sessions", json={"path": "c.ipynb", "type": "notebook"}).json()
    gateway.call("DELETE", f"/api/kernels/{book['kernel']['id']}")
    assert gateway.call("GET", "/api/sessions").json() == []


@pytest.mark.parametrize(("word", "directory"), [("path", "/data/deep"), ("cwd", "data/deep")])
def test_a_kernel_starts_in_the_requested_directory(gateway: Gateway, word: str, directory: str) -> None:
    made = gateway.call("POST", "/api/kernels", json={word: directory}).json()["id"]
    where = "import os; os.getcwd().endswith('/data/deep')"
    assert gateway.text(made, where) == "True"
    gateway.call("POST", f"/api/kernels/{made}/restart")
    assert gateway.text(made, where) == "True"
    assert gateway.call("DELETE", f"/api/kernels/{made}").status_code == 204
    refused = gateway.call("POST", "/api/kernels", json={word: "../out"})
    assert message_of(refused) == (400, "SB002")


# -- keys ------------------------------------------------------------------------------------------------------


@process_only
@pytest.mark.parametrize("scheme", ["token", "Bearer", "TOKEN"])
def test_a_key_is_accepted_in_the_header_and_in_the_query(gateway: Gateway, scheme: str) -> None:
    key = KEYS["alice"]
    url = f"{gateway.url}/api/kernels"
    assert requests.get(url, headers={"Authorization": f"{scheme} {key}"}, timeout=10).status_code == 200
    assert requests.get(f"{url}?token={key}", timeout=10).status_code == 200
    for query in ("", "?token=", "?token=wrong", "?token=%ff"):
        assert message_of(requests.get(url + query, timeout=10)) == (401, "SB020")
    assert (
        requests.get(f"{gateway.url}/v1/sessions?token={key}", timeout=10).status_code == 401
    )  # no client of the native API needs it


@process_only
@pytest.mark.parametrize(
    ("kernel_id", "query", "headers", "status"),
    [
        ("own", "", {}, 401),
        ("own", "?token=wrong", {}, 401),
        ("own", "?token=bob", {}, 404),
        ("own", "?token=alice", {"Origin": "https://evil.example"}, 403),
        ("unknown", "?token=alice", {}, 404),
    ],
)
async def test_an_upgrade_with_a_wrong_key_origin_or_kernel_is_refused(  # noqa: PLR0917 - a table's columns
    gateway: Gateway, kernel: str, kernel_id: str, query: str, headers: dict[str, str], status: int
) -> None:
    for tenant, key in KEYS.items():
        query = query.replace(f"={tenant}", f"={key}")
    target = kernel if kernel_id == "own" else str(uuid.uuid4())
    address = f"{gateway.url.replace('http', 'ws', 1)}/api/kernels/{target}/channels{query}"
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(HTTPRequest(address, headers=headers))
    assert refused.value.code == status


# -- channels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [V1, LEGACY])
async def test_a_cell_runs_over_the_channels(gateway: Gateway, kernel: str, way: str | None) -> None:
    async with connected(gateway, kernel, way) as client:
        info = await client.of(await client.send("shell", "kernel_info_request", {}))
        assert "ipython" in [message["content"].get("implementation") for message in info]
        seen = await client.execute("print('hello'); 6 * 7")
        kinds = [message["header"]["msg_type"] for message in seen if message["channel"] == "iopub"]
        assert kinds == ["status", "execute_input", "stream", "execute_result", "status"]
        (reply,) = [message for message in seen if message["channel"] == "shell"]
        assert (reply["content"]["status"], reply["header"]["msg_type"]) == ("ok", "execute_reply")
        assert gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 1
    until(lambda: gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 0)


async def test_a_client_reads_the_history_of_its_kernel(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        await client.execute("first = 1")
        await client.execute("print(first)")
        asked = {"hist_access_type": "search", "pattern": "first*", "output": False, "raw": True, "n": 5}
        seen = await client.of(await client.send("shell", "history_request", asked))
        (reply,) = [message for message in seen if message["channel"] == "shell"]
        assert reply["content"]["history"] == [[0, 1, "first = 1"]]
        assert "print(first)" in await client.text("%history -g print")


@pytest.mark.parametrize("way", [V1, LEGACY])
async def test_buffers_are_passed_to_and_from_the_kernel(gateway: Gateway, kernel: str, way: str | None) -> None:
    echo = (
        "def opened(comm, message):\n"
        "    comm.on_msg(lambda message: comm.send({'sizes': [len(b) for b in message['buffers']]},"
        " buffers=[bytes(b) for b in message['buffers']]))\n"
        "get_ipython().kernel.comm_manager.register_target('echo', opened)"
    )
    async with connected(gateway, kernel, way) as client:
        await client.execute(echo)
        await client.send("shell", "comm_open", {"comm_id": "c", "target_name": "echo", "data": {}})
        sent = (bytes(range(256)) * 40_000, b"")
        await client.send("shell", "comm_msg", {"comm_id": "c", "data": {}}, buffers=sent)
        while (message := await client.next())["header"]["msg_type"] != "comm_msg":
            pass
        assert message["content"]["data"] == {"sizes": [len(buffer) for buffer in sent]}


async def test_an_input_request_reaches_the_client_that_runs_the_cell(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel, client="one") as one, connected(gateway, kernel, client="two") as two:
        msg_id = await one.send("shell", "execute_request", {"code": "print(input('who? '))", "allow_stdin": True})
        while (question := await one.next())["header"]["msg_type"] != "input_request":
            pass
        assert question["content"]["prompt"] == "who? "
        await one.send("stdin", "input_reply", {"status": "ok", "value": "me"}, parent=question["header"])
        seen = await one.of(msg_id)
        assert "me\n" in [message["content"].get("text") for message in seen]
        assert await two.text("print('two')") == "two\n"


async def test_an_interrupt_keeps_variables_and_a_restart_clears_them(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        code = "x = 1\nprint('begun', flush=True)\nimport time; time.sleep(60)"
        sleeps = {"code": code, "stop_on_error": False}  # else the kernel may abort the next cell
        msg_id = await client.send("shell", "execute_request", sleeps)
        while (await client.next())["content"].get("text") != "begun\n":
            pass
        assert gateway.call("GET", f"/api/kernels/{kernel}").json()["execution_state"] == "busy"
        assert gateway.call("GET", f"/v1/sessions/{kernel}").json()["state"] == "busy"
        assert 'kernel_gateway_sessions{state="busy"} 1.0' in gateway.call("GET", "/metrics").text
        assert gateway.call("POST", f"/api/kernels/{kernel}/interrupt").status_code == 204
        assert "KeyboardInterrupt" in [message["content"].get("ename") for message in await client.of(msg_id)]
        assert await client.text("print(x)") == "1\n"
        assert gateway.call("POST", f"/api/kernels/{kernel}/restart").status_code == 200
        assert await client.text("print('x' in globals())") == "False\n"


async def test_an_interrupt_that_comes_late_does_not_hit_the_next_cell(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        await client.text(DAWDLES)
        msg_id = await client.send("shell", "execute_request", {"code": ENDS_FIRST})
        while (await client.next())["content"].get("text") != "begun\n":
            pass
        assert gateway.call("POST", f"/api/kernels/{kernel}/interrupt").status_code == 204
        assert "ok" in [message["content"].get("status") for message in await client.of(msg_id)]
        assert await client.text("time.sleep(1); print(taken)") == "1\n"


async def test_a_kernel_that_ends_is_announced_and_replaced(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        msg_id = await client.send("shell", "execute_request", {"code": "import os; os._exit(1)"})
        states: list[str] = []
        told: list[str] = []
        while "restarting" not in states or states[-1] != "idle":
            message = await client.next()
            states.append(message["content"].get("execution_state"))
            if message["parent"].get("msg_id") == msg_id:
                told += message["content"].get("traceback", [])
        assert len(told) == 4  # the cell's output and its reply, two lines each
        assert told[0].startswith("KernelDied: ")
        assert await client.text("print(1)") == "1\n"


async def test_code_runs_by_the_shell_channel_alone(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        msg_id = await client.send("control", "execute_request", {"code": "x = 1"})
        (reply,) = [message for message in await client.of(msg_id) if message["channel"] == "control"]
        assert reply["content"]["ename"] == "InvalidRequest"
        assert await client.text("print('x' in globals())") == "False\n"


async def test_a_cell_right_after_a_kernel_has_ended_runs_in_the_next(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        msg_id = await client.send("shell", "execute_request", {"code": "import os; os._exit(1)"})
        assert "KernelDied" in [message["content"].get("ename") for message in await client.of(msg_id)]
        assert await client.text("print(1)") == "1\n"


async def test_ending_a_kernel_is_announced_and_closes_the_socket(gateway: Gateway) -> None:
    kernel = gateway.call("POST", "/api/kernels").json()["id"]
    async with connected(gateway, kernel) as client:
        await client.text("1")
        assert gateway.call("DELETE", f"/api/kernels/{kernel}").status_code == 204
        while (await client.next())["content"] != {"execution_state": "dead"}:
            pass  # messages that were already on their way to the client
        assert await client.end() == 1000


async def test_a_client_may_shut_its_kernel_down(gateway: Gateway) -> None:
    kernel = gateway.call("POST", "/api/kernels").json()["id"]
    async with connected(gateway, kernel) as client:
        await client.send("control", "shutdown_request", {"restart": False})
        while (await client.next())["header"]["msg_type"] != "shutdown_reply":
            pass
        assert await client.end() == 1000
    assert gateway.call("GET", f"/api/kernels/{kernel}").status_code == 404


async def test_a_client_that_reconnects_gets_the_messages_it_missed(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel, client="tab") as client:
        code = "import time\nfor i in range(50): print(i, flush=True); time.sleep(0.01)"
        msg_id = await client.send("shell", "execute_request", {"code": code})
        while (await client.next())["header"]["msg_type"] != "execute_input":
            pass
    until(lambda: gateway.call("GET", f"/api/kernels/{kernel}").json()["execution_state"] == "idle")
    async with connected(gateway, kernel, client="tab") as client:
        seen = await client.of(msg_id)
        text = "".join(message["content"].get("text", "") for message in seen)
        assert text.split()[-1] == "49"
        assert [int(line) for line in text.split()] == list(range(50 - len(text.split()), 50))


async def test_a_second_connection_of_the_same_client_replaces_the_first(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel, client="tab") as first, connected(gateway, kernel, client="tab") as second:
        assert await first.end() == 4409
        assert await second.text("print(2)") == "2\n"


@process_only
@pytest.mark.parametrize("frame", some(["{}", "{", b"\0\0\0\1", "[]", b""], gate=3))
async def test_an_invalid_frame_closes_only_its_own_socket(gateway: Gateway, kernel: str, frame: str | bytes) -> None:
    async with connected(gateway, kernel, LEGACY) as client, connected(gateway, kernel) as other:
        await client._connection.write_message(frame, binary=isinstance(frame, bytes))
        assert await client.end() == 1007
        assert await other.text("print(1)") == "1\n"


@process_only
def test_a_frame_that_is_too_large_closes_the_socket_before_it_is_read(gateway: Gateway, kernel: str) -> None:
    with upgraded(gateway, kernel) as connection:
        # The head of a masked binary frame that announces a length of one tebibyte. Source: RFC 6455, 5.2.
        connection.sendall(b"\x82\xff" + struct.pack(">Q", 2**40))
        received = b""
        while more := connection.recv(4096):
            received += more
        assert b"\x88" in received
        assert struct.pack(">H", 1009) in received
    until(lambda: gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 0)
    assert gateway.text(kernel, "1 + 1") == "2"


def test_a_client_that_answers_no_ping_is_disconnected() -> None:
    with gateways.gateway("process", ping_interval="1") as gateway:
        kernel = gateway.call("POST", "/api/kernels").json()["id"]
        with upgraded(gateway, kernel) as connection:
            assert gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 1
            until(lambda: gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 0)
            received = b""
            with suppress(ConnectionResetError):
                while more := connection.recv(65536):
                    received += more
            assert b"\x89\x00" in received  # the gateway sent a ping


@process_only
async def test_unknown_channels_and_types_do_no_harm(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        for channel in ("hb", "iopub", "", "x" * 1000):
            await client.send(channel, "execute_request", {"code": "1"})
        await client.send("shell", "no_such_request", {})
        assert await client.text("print(1)") == "1\n"


async def test_much_output_comes_complete_and_in_order(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        lines = await client.text("for i in range(10_000): print(i)")
        assert lines.split() == [str(i) for i in range(10_000)]
        much = await client.text("for i in range(20): print(str(i % 10) * 1_000_000)")
        assert [line[0] for line in much.split()] == [str(i % 10) for i in range(20)]
        assert len(much) == 20 * 1_000_001
