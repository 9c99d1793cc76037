"""Measures new sessions, wakes, returns and branches over HTTP, each to its first result, and where its time goes.

The stages are the gateway's own, from its `/metrics`. All ways take turns. New sessions are restored from a checkpoint,
except for those of a second gateway, which has none. It is the part `returns` of `make bench`.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sessions.model.stopwatch import Operation, Stage
from tests.benchmarks.figures import rounds
from tests.benchmarks.first import without_golden_images
from tests.benchmarks.results import Figures, Ways
from tests.benchmarks.serving import serving_on
from tests.benchmarks.start import PRELOAD
from tests.gateways import Gateway

RESTORED = "a new session, restored"
WAYS = {
    Operation.START: "a new session, started plainly",
    Operation.RESTORE: RESTORED,
    Operation.WAKE: "a session that sleeps",
    Operation.ROLLBACK: "a rollback",
    Operation.BRANCH: "a branch",
}
#: what a session's first cell leaves behind, and what a later one shows of it
BEGUN, ASKED = "x = 1; print(open('file', 'w').write('1'))", "x"
#: seconds until a session sleeps at the latest, and of rest before each way
ASLEEP, REST = 60.0, 1.0


def measure(isolation: str, most: int, limit: float) -> Ways:
    """Measure all ways in turn.

    Args:
        isolation: isolation of all kernels; only gVisor's have checkpoints.
        most: number of rounds.
        limit: seconds after which no further round begins.
    """
    found: dict[Operation, Figures] = {operation: defaultdict(list) for operation in WAYS}
    with (
        serving_on(isolation) as plain,
        serving_on(isolation, golden_images="auto", preload=",".join(PRELOAD)) as serving,
    ):
        if reason := without_golden_images(serving):
            return dict.fromkeys(WAYS.values(), reason)
        serving.wait_for_sleep()
        one_round(serving, plain, {operation: defaultdict(list) for operation in WAYS}, 0)  # the first costs more
        for number in rounds(f"returns, {isolation}", most, limit):
            one_round(serving, plain, found, number)
    return {way: found[operation] for operation, way in WAYS.items()}


def one_round(serving: Gateway, plain: Gateway, found: dict[Operation, Figures], number: int) -> None:
    """Measure each way once. Nothing else goes on meanwhile: the sleeper sleeps before the others begin.

    Args:
        serving: the gateway.
        plain: another one, whose kernels are started plainly.
        found: gets the figures.
        number: of the round; rollback and branch, which are compared, take turns in being the first.
    """
    sleeper, name = uuid.uuid4().hex, uuid.uuid4().hex
    branch = f"{name}-branch"

    def begin(session: str, on: Gateway = serving, **settings: Any) -> None:
        post(on, "", name=session, **settings)
        assert on.text(session, BEGUN) == "1\n"

    def answer(session: str, way: str = "", **body: str) -> None:
        if way:
            post(serving, f"/{name}/{way}", **body)
        assert serving.text(session, ASKED) == "1"

    note(serving, found, Operation.RESTORE, partial(begin, sleeper, on_idle="sleep", idle_timeout=2))
    until_asleep(serving, sleeper)
    note(plain, found, Operation.START, partial(begin, name, plain))
    end(plain, name)
    note(serving, found, Operation.RESTORE, partial(begin, name))
    post(serving, f"/{name}/checkpoints", name="one")
    returns = {
        Operation.ROLLBACK: partial(answer, name, "rollback", to="one"),
        Operation.BRANCH: partial(answer, branch, "branch", **{"as": branch, "from": "one"}),
    }
    for operation in reversed(returns) if number % 2 else returns:
        note(serving, found, operation, returns[operation])
    note(serving, found, Operation.WAKE, partial(answer, sleeper))
    for session in (sleeper, name, branch):
        end(serving, session)


def note(serving: Gateway, found: dict[Operation, Figures], operation: Operation, work: Callable[[], object]) -> None:
    """Note the seconds of an operation with its first result, and of its stages."""
    time.sleep(REST)
    before, begun = stages(serving, operation), time.perf_counter()
    work()
    whole, after = time.perf_counter() - begun, stages(serving, operation)
    found[operation]["whole"].append(whole)
    took = {stage: after[stage] - before[stage] for stage in after}
    for stage, seconds in took.items():
        found[operation][stage].append(seconds)
    found[operation]["result"].append(whole - sum(took.values()))


def stages(serving: Gateway, operation: Operation) -> dict[str, float]:
    """Return the seconds of each stage so far, by its name."""
    families = text_string_to_metric_families(serving.call("GET", "/metrics", tenant=None).text)
    samples = [sample for family in families for sample in family.samples]
    sums = [sample for sample in samples if sample.name == "kernel_gateway_stage_seconds_sum"]
    mine = {one.labels["stage"]: one.value for one in sums if one.labels["operation"] == operation}
    return {stage.value: mine.get(stage.value, 0.0) for stage in Stage}


def post(serving: Gateway, path: str, **body: Any) -> None:
    """Send a request about sessions, which must succeed."""
    response = serving.call("POST", f"/v1/sessions{path}", json=body)
    assert response.ok, response.text


def end(serving: Gateway, name: str) -> None:
    """End a session."""
    assert serving.call("DELETE", f"/v1/sessions/{name}").status_code == 204


def until_asleep(serving: Gateway, name: str) -> None:
    """Wait until a session sleeps."""
    deadline = time.monotonic() + ASLEEP
    while (shown := serving.call("GET", f"/v1/sessions/{name}").json())["state"] != "asleep":
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
