"""Read a gateway's audit, and helpers for tests that check it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from sessions.store.records import Begin, End, read
from tests.gateways import Gateway
from tests.kernel_gateway.calls import children, failure, until


def accounts(state_dir: Path) -> dict[str, list[Begin | End]]:
    """Return the audit's records by execution. Reading also checks that no record was changed."""
    found: dict[str, list[Begin | End]] = {}
    for record in read(state_dir / "audit.db"):
        assert isinstance(record.what, Begin | End)
        found.setdefault(record.execution, []).append(record.what)
    return found


def outcomes(state_dir: Path) -> Counter[str]:
    """Count the outcomes of executions when all have ended; check that each has one begin and one end.

    A cell's answer comes before the record of its end.
    """
    until(lambda: all(len(records) > 1 for records in accounts(state_dir).values()))
    found = accounts(state_dir)
    for begin, *rest in found.values():
        assert isinstance(begin, Begin)
        assert [type(record) for record in rest] == [End]
    return Counter(str(records[-1].outcome) for records in found.values() if isinstance(records[-1], End))


def execute(
    gateway: Gateway, code: str, session: str = "s", *, on_disconnect: str = "continue", **options: Any
) -> requests.Response:
    options.setdefault("json", {"code": code, "on_disconnect": on_disconnect})
    return gateway.call("POST", f"/v1/sessions/{session}/execute", **options)


def refusal(response: requests.Response) -> str:
    """Return the message of a refusal for a limit, in any dialect."""
    assert failure(response) == (429, "SB008") if "/v1/" in response.url else response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    error = response.json()["error"]
    assert error["code"] == "SB008"
    return str(error["message"])


def contains_no_secret(gateway: Gateway, *secret: str) -> bool:
    """Return True if no file of the gateway contains one of the secrets."""
    contents = [path.read_bytes() for path in gateway.state_dir.iterdir() if path.is_file()]
    assert contents
    return not any(text.encode() in content for text in secret for content in contents)


def crash(gateway: Gateway) -> None:
    """Kill the gateway, and the kernels that it leaves behind."""
    offspring = children(gateway.process.pid)
    gateway.process.kill()
    gateway.process.wait()
    for pid in offspring:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
