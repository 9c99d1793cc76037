"""A full disk under the gateway's state: no cell runs that cannot be recorded; everything else continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.attacks.bench import require_root, run
from tests.attacks.vitals import faults
from tests.faults.health import create, end
from tests.gateways import Gateway, gateway

SIZE = "4m"
#: contained in all code that is run
CANARY = "canary-8d21f0"


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
    with gateway("process", log=str(log), state_dir=str(small)) as serving:
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


def test_on_a_full_disk_no_cell_runs_but_sessions_end_and_later_all_works(cramped: Gateway, small: Path) -> None:
    for session in ("a", "b"):
        assert cramped.execute(session, f"x = 42  # {CANARY}")["status"] == "ok"
    with full(small):
        assert refused(cramped, "a") == "SB019"
        assert refused(cramped, "b") == "SB019"
        assert end(cramped, "b").status_code == HTTPStatus.NO_CONTENT
        assert refused(cramped, "new") == "SB027"  # a session without a record would be lost with the gateway
        assert "new" not in [each["name"] for each in cramped.call("GET", "/v1/sessions").json()["sessions"]]
        assert cramped.call("GET", "/healthz", tenant=None).status_code == HTTPStatus.OK
    assert create(cramped, "new").status_code == HTTPStatus.CREATED
    reply = cramped.execute("a", "print(x)")
    assert (reply["status"], reply["state"]) == ("ok", "preserved")
    assert "audit cannot be written" in cramped.log.read_text()
    assert CANARY not in cramped.log.read_text(), "a traceback tells no code"
    assert not [line for line in faults(cramped.log.read_text()) if "cannot be written" not in line]
