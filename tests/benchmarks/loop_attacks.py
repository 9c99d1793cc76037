"""Attacks on other tenants by what the event loop must read, count, keep or refuse. See `neighbour.py`."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import requests

from tests.attacks import forge
from tests.benchmarks.attacks import ATTACKER, PATIENT, Attack, Client, cells
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import jupyter
from tests.kernel_gateway.agentrun import TEMPLATE

MIB = 1024**2
FORGE = inspect.getsource(forge)
#: shows one display at 15,000 places, and changes it again and again
UPDATES = (
    "shown = display('0', display_id='d')\n"
    "for _ in range(15_000): display('0', display_id='d')\n"
    "while True: shown.update(str(id(object())))"
)
#: begins cells that nobody has sent
CELLS = f"{FORGE}\nwhile True: on_iopub(message('execute_input', {{'code': 'x'}}, header('x')))"
#: shows JSON of three million lists
LISTS = (
    f"{FORGE}\nlists = b'[' + b'[],' * 3_000_000 + b'[]]'\n"
    'content = b\'{"data": {"application/json": \' + lists + b\'}, "metadata": {}}\'\n'
    "while True: on_iopub(signed(header('display_data'), parent(), {}, content))"
)
#: asks with 10 MiB
PROMPTS = "while True: input('x' * 10 * 2**20)"
#: bodies of nearly 4 MiB: values, and wrong values
VALUES = b'{"code": "1", "arguments": {"x": [' + b"[]," * 1_300_000 + b"[]]}}"
WRONG = b'{"code": "1", "stdin": [' + b"1," * 990_000 + b"1]}"


def until(seconds: float, call: Callable[[], object]) -> None:
    """Repeat a call for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call()


def exports(count: int, outputs: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Export a notebook with very many outputs again and again, with `count` clients."""
    owner = Client(serving, ATTACKER)
    code = f"for number in range({outputs}): display({{'text/plain': str(number)}}, raw=True)"
    assert owner.execute("book", code).json()["status"] == "ok"

    def export(client: Client) -> None:
        with client.call("GET", "/v1/sessions/book/notebook", stream=True) as answer:
            answer.raw.read(decode_content=False)  # in few steps

    return [partial(until, seconds, partial(export, Client(serving, ATTACKER))) for _ in range(count)]


def bodies(count: int, body: bytes, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Send a JSON body again and again, with `count` clients."""
    for number in range(count):
        client = Client(serving, ATTACKER)
        yield partial(until, seconds, partial(client.call, "POST", f"/v1/sessions/body-{number}/execute", data=body))


def encoded(encoding: str, content: str, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Write a file in an encoding again and again, with two clients."""
    client = Client(serving, ATTACKER)
    box = client.call("POST", "/sandboxes", json={"templateName": TEMPLATE}).json()["data"]["sandboxId"]
    body = json.dumps({"path": "/home/user/file", "content": content, "encoding": encoding}).encode()
    for each in (client, Client(serving, ATTACKER)):
        yield partial(until, seconds, partial(each.call, "POST", f"/sandboxes/{box}/files", data=body))


def many_files(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """List 10,000 files again and again, with `count` clients."""
    made = Client(serving, ATTACKER).execute("files", "for n in range(10_000): open(f'file-{n}', 'w').close()")
    assert made.json()["status"] == "ok"
    for _ in range(count):
        client = Client(serving, ATTACKER)
        yield partial(until, seconds, partial(client.call, "GET", "/v1/sessions/files/files/?list"))


def refusals(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Send requests with unknown keys, each another, with `count` clients."""

    def ask(http: requests.Session) -> None:
        key = {"Authorization": f"Bearer {uuid.uuid4()}"}
        assert http.get(f"{serving.url}/v1/sessions", headers=key, timeout=PATIENT).status_code == 401

    return [partial(until, seconds, partial(ask, requests.Session())) for _ in range(count)]


def requests_with_a_key(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Send small requests with a valid key, with `count` clients."""

    def ask(client: Client) -> None:
        assert client.call("GET", "/v1/sessions").status_code == 200

    return [partial(until, seconds, partial(ask, Client(serving, ATTACKER))) for _ in range(count)]


def prompts(serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Ask with long prompts, and answer each."""
    client = Client(serving, ATTACKER)
    body: dict[str, Any] = {"code": PROMPTS, "timeout": seconds, "stdin": ["x"] * 5000}
    return [partial(client.call, "POST", "/v1/sessions/prompts/execute", json=body)]


def repeated(serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Send one cell under one message id again and again over a kernel's channels."""
    kernel = Client(serving, ATTACKER).call("POST", "/api/kernels", json={}).json()["id"]

    async def send() -> None:
        async with jupyter.connected(serving, kernel, key=KEYS[ATTACKER]) as client:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(100):
                    await client.send("shell", "execute_request", {"code": "1"}, msg_id="again")
                for _ in range(100):
                    await client.next()

    return [lambda: asyncio.run(send())]


BY_LOOP: dict[str, Attack] = {
    "two clients export a notebook of 10,000 outputs": partial(exports, 2, 10_000),
    "a kernel updates a display at 15,000 places": partial(cells, 1, UPDATES),
    "a kernel begins cells that nobody has sent": partial(cells, 1, CELLS),
    "a kernel shows JSON of 3,000,000 lists": partial(cells, 1, LISTS),
    "a kernel asks with prompts of 10 MiB": prompts,
    "two clients send JSON of 1,300,000 lists": partial(bodies, 2, VALUES),
    "two clients send 990,000 wrong answers": partial(bodies, 2, WRONG),
    "two clients write 2 MiB in base64": partial(encoded, "base64", base64.b64encode(bytes(2 * MIB)).decode()),
    "two clients write 6,000 characters in punycode": partial(encoded, "punycode", "".join(map(chr, range(256, 6256)))),
    "four clients list 10,000 files": partial(many_files, 4),
    "eight clients send unknown keys": partial(refusals, 8),
    "25 clients send requests with a valid key": partial(requests_with_a_key, 25),
    "a client repeats one cell under one message id": repeated,
}
