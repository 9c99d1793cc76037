"""A full disk under the gateway's state: no cell runs that cannot be recorded, deletions work, all else is refused."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import requests

from sessions.store.reserve import RESERVE
from tests.attacks.bench import require_root, run
from tests.attacks.vitals import faults
from tests.faults.health import create, end
from tests.gateways import Gateway, gateway
from tests.kernel_gateway.agentrun import CONTROL, Box, data
from tests.kernel_gateway.agentrun import create as create_sandbox
from tests.kernel_gateway.calls import until

SIZE = "4m"
#: contained in all code that is run
CANARY = "canary-8d21f0"
ADMIN = "the-admins-own-key"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small disk that fills up quickly."""
    require_root()
    run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(tmp_path))
    yield tmp_path
    run("umount", str(tmp_path))


@pytest.fixture
def cramped(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("log") / "log"  # elsewhere: a line cut off for lack of room would be a fault
    with gateway("process", log=str(log), state_dir=str(small), admin_key=ADMIN) as serving:
        until((small / "reserve").exists)
        yield serving


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill the disk completely."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    yield
    ballast.unlink()


def refused(gateway: Gateway, session: str) -> str:
    """Run cells until one is refused, and return its error code: there may be room for a few records."""
    for _ in range(500):
        answer = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": f"print('{CANARY}')"})
        if answer.status_code != HTTPStatus.OK:
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE, answer.text
            return str(answer.json()["error"]["code"])
    raise AssertionError("nothing was refused")


def doctor(state_dir: Path) -> str:
    """Return what the operator's command says of this machine."""
    command = [sys.executable, "-m", "kernel_gateway", "doctor", "--isolation", "process", "--state-dir"]
    return subprocess.run([*command, str(state_dir)], check=False, capture_output=True, text=True).stdout


def administer(gateway: Gateway, method: str, path: str, body: object = None) -> requests.Response:
    return gateway.call(method, path, tenant=None, headers={"Authorization": f"Bearer {ADMIN}"}, json=body)


def refused_write(write: Callable[[int], requests.Response]) -> None:
    """Write until there is no room, which is an error for clients: there may be room for a few pages."""
    for number in range(50):
        answer = write(number)
        if not answer.ok:
            assert answer.json()["error"]["code"] == "SB027", answer.text
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            return
    raise AssertionError("nothing was refused")


def test_on_a_full_disk_no_cell_runs_but_sessions_end_and_later_all_works(cramped: Gateway, small: Path) -> None:
    for session in ("a", "b"):
        assert cramped.execute(session, f"x = 42  # {CANARY}")["status"] == "ok"
    with full(small):
        assert refused(cramped, "a") == "SB019"
        assert refused(cramped, "b") == "SB019"
        assert end(cramped, "b").status_code == HTTPStatus.NO_CONTENT
        tried: list[str] = []

        def create_large(number: int) -> requests.Response:
            tried.append(f"new{number}")
            return cramped.call("POST", "/v1/sessions", json={"name": tried[-1], "env": {"A": "x" * 32_000}})

        refused_write(create_large)  # a session without a record would be lost with the gateway
        assert tried[-1] not in [each["name"] for each in cramped.call("GET", "/v1/sessions").json()["sessions"]]
        assert cramped.call("GET", "/healthz", tenant=None).status_code == HTTPStatus.OK
        until(lambda: not cramped.ready())
        told = cramped.call("GET", "/readyz", tenant=None).json()["error"]
        assert (told["code"], "the disk of the state directory is full" in told["message"]) == ("SB027", True)
        assert "PROBLEM  state directory: the disk" in doctor(small)
    assert "ok       state directory: " in doctor(small)
    until(cramped.ready)
    assert create(cramped, tried[-1]).status_code == HTTPStatus.CREATED
    reply = cramped.execute("a", "print(x)")
    assert (reply["status"], reply["state"]) == ("ok", "preserved")
    assert "audit cannot be written" in cramped.log.read_text()
    assert CANARY not in cramped.log.read_text(), "a traceback tells no code"
    assert not [line for line in faults(cramped.log.read_text()) if "cannot be written" not in line]


def test_templates_are_deleted_on_a_full_disk_and_not_made_or_changed(cramped: Gateway, small: Path) -> None:
    def template(name: str, method: str = "POST") -> requests.Response:
        path = f"{CONTROL}/templates" if method == "POST" else f"{CONTROL}/templates/{name}"
        return cramped.call(method, path, json={"templateName": name, "description": "x" * 5000})

    names = [f"t{number}" for number in range(10)]
    for name in names:
        data(template(name))
    with full(small):
        refused_write(lambda number: template(f"new{number}"))
        refused_write(lambda _: template("t0", "PUT"))
        for name in names:
            data(template(name, "DELETE"))
            assert template(name, "GET").status_code == HTTPStatus.NOT_FOUND
    until(lambda: (small / "reserve").stat().st_size >= RESERVE)
    data(template("t0"))
    assert "Traceback" not in cramped.log.read_text()


def test_keys_are_revoked_on_a_full_disk_and_not_made(cramped: Gateway, small: Path) -> None:
    def add(tenant: str) -> requests.Response:
        return administer(cramped, "POST", "/v1/admin/keys", {"tenant": tenant})

    keys = [add("carol").json() for _ in range(6)]
    with full(small):
        refused_write(lambda _: add("dave"))
        for key in keys[:3]:
            assert administer(cramped, "DELETE", f"/v1/admin/keys/{key['id']}").status_code == HTTPStatus.NO_CONTENT
        for key in keys[3:]:  # the command is another process
            command = [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(small), "revoke", key["id"]]
            subprocess.run(command, check=True, capture_output=True)
        for key in keys:
            answer = cramped.call("GET", "/v1/sessions", tenant=None, headers={"X-API-Key": key["key"]})
            assert answer.status_code == HTTPStatus.UNAUTHORIZED


def test_sessions_and_sandboxes_end_for_good_on_a_full_disk(cramped: Gateway, small: Path) -> None:
    def recorded() -> int:
        with contextlib.closing(sqlite3.connect(small / "ledger.db")) as ledger:
            found: int = ledger.execute("SELECT count(*) FROM kept").fetchone()[0]
            return found

    boxes = [Box(cramped, data(create_sandbox(cramped))["sandboxId"]) for _ in range(3)]
    for session in ("a", "b", "c"):
        assert create(cramped, session).status_code == HTTPStatus.CREATED
    assert recorded() == 6
    with full(small):
        assert refused(cramped, "a") == "SB019"
        for session in ("a", "b", "c"):
            assert end(cramped, session).status_code == HTTPStatus.NO_CONTENT
        for box in boxes:
            assert box.call("DELETE", "").ok
        assert recorded() == 0


def test_the_providers_settings_are_refused_on_a_full_disk(cramped: Gateway, small: Path) -> None:
    config = {"provider_type": "self_managed", "config": {"endpoint": f"http://127.0.0.1:1/{'x' * 1900}"}}
    with full(small):
        for _ in range(50):
            answer = administer(cramped, "POST", "/api/admin/sandbox/config", config)
            if not answer.ok:
                break
        assert "SB027" in answer.text
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert administer(cramped, "POST", "/api/admin/sandbox/config", config).ok
