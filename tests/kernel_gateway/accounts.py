"""What a gateway's audit tells."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from sessions.records import Begin, End, read
from tests.gateways import Gateway
from tests.kernel_gateway.wire import children, failure


def accounts(state_dir: Path) -> dict[str, list[Begin | End]]:
    """All that the audit tells, by execution. That nothing in it was changed is checked on the way."""
    found: dict[str, list[Begin | End]] = {}
    for record in read(state_dir / "audit.db"):
        assert isinstance(record.what, Begin | End)
        found.setdefault(record.execution, []).append(record.what)
    return found


def outcomes(state_dir: Path) -> Counter[str]:
    """How executions have ended, each of which has one begin and one end."""
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
    """The message of a refusal for a limit, in whichever dialect."""
    assert failure(response) == (429, "SB008") if "/v1/" in response.url else response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    error = response.json()["error"]
    assert error["code"] == "SB008"
    return str(error["message"])


def shows_nothing(gateway: Gateway, *secret: str) -> bool:
    """Whether secrets stand in no file of the gateway."""
    contents = [path.read_bytes() for path in gateway.state_dir.iterdir() if path.is_file()]
    assert contents
    return not any(text.encode() in content for text in secret for content in contents)


def crash(gateway: Gateway) -> None:
    """Kill it, and the kernels that nobody looks after now."""
    offspring = children(gateway.process.pid)
    gateway.process.kill()
    gateway.process.wait()
    for pid in offspring:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
