"""The cells of a session or a notebook, run again in a fresh session, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from kernel_gateway.client import Session
from kernel_gateway.dialects.native.replay import ReplayEvent, ReplayReport
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import NDJSON, WAITS, failure, process_only, until


@pytest.fixture
def fresh(gateway: Gateway, session: str) -> Iterator[str]:
    """A name for the fresh session, which is ended after the test."""
    name = f"{session}-again"
    yield name
    gateway.call("DELETE", f"/v1/sessions/{name}")


def replay(gateway: Gateway, source: Any, fresh: str, **fields: Any) -> dict[str, Any]:
    answer = gateway.call("POST", "/v1/replay", json={"from": source, "as": fresh, **fields})
    assert answer.status_code == HTTPStatus.OK, answer.text
    report: dict[str, Any] = answer.json()
    ReplayReport.model_validate(report)
    assert report["session"] == fresh
    return report


@pytest.mark.gate
def test_a_lost_session_is_rebuilt_with_one_call(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.execute(session, "import pandas as pd\nrows = [1, 2, 3]")
    gateway.execute(session, "total = sum(rows)\nprint(total)\nobject()")
    gateway.execute(session, "import time; print(time.time_ns())")
    assert gateway.execute(session, "import os; os._exit(3)")["status"] == "died"
    report = replay(gateway, session, fresh)
    first, second, third, killer = report["cells"]
    assert first["same"]
    assert second["same"], second
    assert [difference["where"] for difference in third["differences"]] == ["stdout"]
    assert killer["status"] is None
    assert "exit code 3" in killer["skipped"]
    assert (report["same"], report["different"], report["skipped"], report["missing"]) == (2, 1, 1, 0)
    assert gateway.text(fresh, "total, pd.__name__") == "(6, 'pandas')"


@process_only
def test_a_notebook_is_replayed_after_its_session_has_ended(gateway: Gateway, session: str, fresh: str) -> None:
    for code in ("x = 20", "print(x + 1)", "x + 2"):
        gateway.execute(session, code)
    book = gateway.call("GET", f"/v1/sessions/{session}/notebook").json()
    gateway.call("DELETE", f"/v1/sessions/{session}")
    book["cells"][1]["outputs"][0]["text"] = "21 before\n"
    book["cells"].append({"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# text"})
    skipped = {"cell_type": "code", "metadata": {"tags": ["skip-execution"]}, "source": ["1 /", " 0"], "outputs": []}
    book["cells"].append(skipped)
    cells = replay(gateway, book, fresh)["cells"]
    assert [cell["same"] for cell in cells] == [True, False, True, True]
    assert cells[1]["differences"] == [{"where": "stdout", "before": "21 before\n", "after": "21\n"}]
    assert "skip-execution" in cells[3]["skipped"]


@process_only
def test_cells_are_streamed_as_they_end(gateway: Gateway, session: str, fresh: str) -> None:
    for code in ("print(1)", "1 / 0"):
        gateway.execute(session, code)
    answer = gateway.call("POST", "/v1/replay", json={"from": session, "as": fresh}, headers={"Accept": NDJSON})
    events = [json.loads(line) for line in answer.text.splitlines()]
    for event in events:
        assert event.pop("id")
        ReplayEvent.model_validate(event)
    assert [event.get("status", event["type"]) for event in events] == ["ok", "error", "end"]
    assert events[-1]["same"] == 2


@process_only
def test_two_replays_with_one_seed_have_the_same_random_numbers(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.execute(session, "import random, numpy as np")
    for _ in range(2):
        gateway.execute(session, "print(random.random(), np.random.random())")
    replay(gateway, session, fresh, seed=7)
    book = gateway.call("GET", f"/v1/sessions/{fresh}/notebook").json()
    assert book["cells"][1]["outputs"] != book["cells"][2]["outputs"]
    gateway.call("DELETE", f"/v1/sessions/{fresh}")
    assert replay(gateway, book, fresh, seed=7)["different"] == 0
    gateway.call("DELETE", f"/v1/sessions/{fresh}")
    assert replay(gateway, book, fresh, seed=8)["different"] == 2


@process_only
def test_a_seed_needs_no_numpy_and_loads_none(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.execute(session, "import random, sys")
    gateway.execute(session, "print(random.random(), 'numpy' in sys.modules)")
    replay(gateway, session, fresh, seed=7)
    book = gateway.call("GET", f"/v1/sessions/{fresh}/notebook").json()
    assert "False" in str(book["cells"][1]["outputs"])
    gateway.call("DELETE", f"/v1/sessions/{fresh}")
    assert replay(gateway, book, fresh, seed=7)["different"] == 0


@process_only
def test_a_restart_of_the_client_is_repeated(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.execute(session, "x = 1")
    gateway.call("POST", f"/v1/sessions/{session}/restart")
    gateway.execute(session, "'x' in globals()")
    cells = replay(gateway, session, fresh)["cells"]
    assert [(cell["same"], cell["state"]) for cell in cells] == [(True, "new"), (True, "restarted")]


@process_only
def test_a_tenant_has_one_replay_at_a_time_and_its_end_frees_it(gateway: Gateway, session: str, fresh: str) -> None:
    book = {"cells": [{"cell_type": "code", "source": WAITS}]}
    with closing(HTTPConnection(urlsplit(gateway.url).netloc)) as leaving:
        body = json.dumps({"from": book, "as": fresh})
        leaving.request("POST", "/v1/replay", body, {"Authorization": f"Bearer {KEYS['alice']}"})
        until(lambda: gateway.call("GET", f"/v1/sessions/{fresh}").json().get("state") == "busy")
        refused = gateway.call("POST", "/v1/replay", json={"from": book, "as": session})
        assert failure(refused) == (HTTPStatus.TOO_MANY_REQUESTS, "SB008")
    until(lambda: gateway.call("GET", f"/v1/sessions/{fresh}").json()["state"] == "idle")
    assert replay(gateway, {"cells": [{"cell_type": "code", "source": "1"}]}, session)["cells"][0]["status"] == "ok"


@process_only
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"from": "not-there", "as": "a"}, (HTTPStatus.NOT_FOUND, "SB011")),
        ({"from": {"cells": []}, "as": "a"}, (HTTPStatus.BAD_REQUEST, "SB002")),
        ({"from": {"cells": [{"cell_type": 5}]}, "as": "a"}, (HTTPStatus.BAD_REQUEST, "SB002")),
        ({"from": {"cells": [{"cell_type": "code", "source": "1"}]}, "as": "../a"}, (HTTPStatus.BAD_REQUEST, "SB002")),
    ],
)
def test_bad_replays_are_refused(gateway: Gateway, body: dict[str, Any], code: tuple[int, str]) -> None:
    assert failure(gateway.call("POST", "/v1/replay", json=body)) == code


@process_only
def test_a_seed_needs_a_language_that_takes_one(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "language": "bash"})
    gateway.execute(session, "echo $RANDOM")
    asked = {"from": session, "as": fresh, "seed": 1}
    assert failure(gateway.call("POST", "/v1/replay", json=asked)) == (HTTPStatus.BAD_REQUEST, "SB002")
    assert failure(gateway.call("GET", f"/v1/sessions/{fresh}")) == (HTTPStatus.NOT_FOUND, "SB011")


@process_only
def test_another_tenants_session_is_not_replayed(gateway: Gateway, session: str, fresh: str) -> None:
    gateway.execute(session, "secret = 1")
    asked = {"from": session, "as": fresh}
    assert failure(gateway.call("POST", "/v1/replay", json=asked, tenant="bob")) == (HTTPStatus.NOT_FOUND, "SB011")


@process_only
def test_the_client_library_replays(gateway: Gateway, session: str, fresh: str) -> None:
    with Session(gateway.url, KEYS["alice"], session) as client:
        client.run("print(6 * 7)")
        book = client.notebook()
        assert client.replay(fresh)["same"] == 1
        gateway.call("DELETE", f"/v1/sessions/{fresh}")
        client.end()
        assert client.replay(fresh, notebook=book, seed=1, timeout=30)["same"] == 1
