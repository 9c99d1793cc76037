"""What hostile tenants do: programs of `tests/attacks` on a small scale. Any answer is good, except for a defect's."""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from urllib.parse import urlsplit

from tests.attacks import forge
from tests.attacks.cells import STUBBORN
from tests.attacks.test_attack_resources import FORK_BOMBS, MEMORY_BOMBS
from tests.soak.tenants import Tenant, expect

#: seconds that a hostile cell may run
SECONDS = 3.0
FORGE = inspect.getsource(forge)
PROGRAMS = (
    *FORK_BOMBS.values(),
    *MEMORY_BOMBS.values(),
    STUBBORN,
    "while True: print('x' * 10_000)",
    "while True: print('x', flush=True)",
    "import os\nos._exit(3)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "with open('full', 'wb') as file:\n    while True: file.write(bytes(2**20))",
    "for number in range(20_000): open(f'f{number}', 'w').close()",
    "import os\nfor number in range(1000): os.mkdir('d'); os.chdir('d')",
    f"{FORGE}\nwhile True: on_iopub(*malformed())",
    f"{FORGE}\nfor n in range(9999): on_iopub(message('execute_input', {{'code': 'x'}}, header('x')))",
    f"{FORGE}\non_shell(*[replied() for _ in range(9999)])",
    f"{FORGE}\non_stdin(*[message('input_request', {{'prompt': 'x' * 9999}}) for _ in range(999)])",
    f"{FORGE}\nkernel.iopub_thread.socket.close(0)",
    f"{FORGE}\nkernel.shell_stream.socket.close(0)",
)


def program(code: str, tenant: Tenant) -> None:
    """Run a hostile cell in a session of its own, use its files meanwhile, and end it."""
    name = tenant.new("evil")
    answers = [tenant.ask("POST", f"/v1/sessions/{name}/execute", json={"code": code, "timeout": SECONDS})]
    answers += [tenant.ask("GET", f"/v1/sessions/{name}/{path}") for path in ("files/?list", "notebook")]
    tenant.end(name)
    for answer in answers:
        expect(answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR, f"{code[-200:]}: {answer.text}")


def half_open(tenant: Tenant) -> None:
    """Begin requests that never become whole, with a key and without."""
    where = urlsplit(tenant.gateway.url)
    with ExitStack() as stack:
        for number in range(50):
            connection = stack.enter_context(socket.create_connection((where.hostname, where.port), timeout=SECONDS))
            key = f"X-API-Key: {tenant.key}\r\n" if number % 2 else ""
            with suppress(OSError):  # the gateway may close it
                connection.sendall(f"POST /v1/sessions HTTP/1.1\r\n{key}Content-Length: 1000\r\n".encode())
        time.sleep(SECONDS)


def leaves_early(tenant: Tenant) -> None:
    """Leave while the answer is sent, and end the session during its start."""
    name = tenant.new("evil")
    with suppress(OSError):  # of requests: no answer within that time
        tenant.ask("POST", f"/v1/sessions/{name}/execute", json={"code": "while True: print('x' * 9999)"}, timeout=0.5)
    tenant.end(name)


HOSTILE: tuple[Callable[[Tenant], None], ...] = (
    *(partial(program, code) for code in PROGRAMS),
    half_open,
    leaves_early,
)
