"""The table of what survives what in docs/state.md: each row's events happen, and each cell is held to its words.

The words are read from the page, so a changed cell or a new row fails here until the gateway does what it says.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import Gateway, text_of
from tests.kernel_gateway import survival
from tests.kernel_gateway.survival import WRITE, Event, Life
from tests.tiers import cases

PAGE = Path(__file__).parents[2] / "docs/state.md"
#: the next cell: what is left of both
TELL = "import os; print(globals().get('x'), os.path.exists('file') and open('file').read())"

#: words of the table: the variable in the next cell, and what its reply says; the first value is 1, the second one 2
VARIABLES = {
    "stay": ("2", "preserved"),
    "as before the cell, reported": ("1", "rolled_back"),
    "as at that moment, reported": ("1", "rolled_back"),
    "start afresh, reported": ("None", "restarted"),
    "lost, reported": ("None", "lost"),
    "lost, reported to a client that returns": ("None", "lost"),
}
FILES = {"stay": "2", "as before the cell": "1", "as at that moment": "1", "deleted": "False", "lost": "False"}
#: whether the notebook has the cells from before
#: status and error of a retry, and whether it gets the first run's result
RETRY = {
    "gets the result": (200, None, True),
    "runs again": (200, None, False),
    "`SB030`: not run again": (409, "SB030", None),
}
TRANSCRIPT = {"stays": True, "deleted": False, "starts empty": False, "starts empty, reported": False}


def rows(title: str = "What survives what") -> dict[str, tuple[str, str, str, str]]:
    """Return a table: what happens, and the words for variables, files, transcript and a retry."""
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    _head, _line, *lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    table = (line.split(" | ") for line in lines)
    return {event: (variables, files, transcript, retry) for event, variables, files, transcript, retry in table}


#: the events of each row
EVENTS: dict[str, dict[str, Event]] = {
    **survival.EVERYWHERE,
    'the same with `"checkpoints": "auto"`': survival.deaths(auto=True),
    "a rollback to a checkpoint": {"rollback": survival.rollback},
    "the session falls asleep (`on_idle`: `sleep`) and wakes": {"sleep": survival.fall_asleep},
    "the session is culled or ended; or the gateway is stopped without `keep_sessions`, "
    "whether the session sleeps or not": {
        "cull": survival.cull,
        "end": survival.end,
        "stop": survival.stop("docker", keep=False),
    },
    "the gateway is killed and started again; or stopped with `keep_sessions`": {
        "kill": survival.kill("docker"),
        "stop": survival.stop("docker", keep=True),
    },
    "the same with isolation `process`": {
        "kill": survival.kill("process"),
        "stop": survival.stop("process", keep=True),
    },
    "the Docker engine is restarted (without its `live-restore`)": {"engine": survival.restart_engine},
    "the machine is restarted": {"machine": survival.restart_machine},
    "while the session sleeps: the machine is restarted; or the gateway is killed, or stopped with `keep_sessions`, "
    "and started again": {
        "machine": survival.asleep_meanwhile(machine=True),
        "gateway": survival.asleep_meanwhile(machine=False),
    },
}
BY_NAME = survival.by_name(rows(), EVENTS)

# -- checks ----------------------------------------------------------------------------------------------------


def test_each_row_of_the_table_is_checked() -> None:
    assert set(rows()) == set(EVENTS)


@pytest.fixture(scope="module")
def with_sleep() -> Iterator[Callable[[], Gateway]]:
    """Return a function that starts a gateway whose sessions can sleep, once."""
    with ExitStack() as stack:

        def start() -> Gateway:
            gateway = stack.enter_context(gateways.gateway("docker", golden_images="auto"))
            gateway.wait_for_sleep()
            return gateway

        yield functools.cache(start)


@pytest.mark.engine
@pytest.mark.parametrize("isolation", ["docker"])
@pytest.mark.parametrize("named", cases(BY_NAME, gate="1 error"))
def test_what_survives_is_what_the_table_says(
    named: tuple[str, Event],
    isolation: str,
    started: Callable[[str], Gateway],
    with_sleep: Callable[[], Gateway],
    tmp_path: Path,
) -> None:
    row, event = named
    with ExitStack() as stack:
        life = Life(uuid.uuid4().hex, started(isolation), with_sleep, stack, tmp_path)
        check(life, event(life), rows()[row])


def check(life: Life, gateway: Gateway, words: tuple[str, str, str, str]) -> None:
    """Hold a session to the words of the table, after an event."""
    variables, files, transcript, retry = words
    if "deleted" in (files, transcript):
        gone = [life.ask(gateway, "GET", what).status_code for what in ("/files/file", "/notebook")]
        assert gone == [404 if cell == "deleted" else 200 for cell in (files, transcript)]
    reply = gateway.execute(life.name, TELL)
    value, state = VARIABLES[variables]
    assert (text_of(reply), reply["state"]) == (f"{value} {FILES[files]}\n", state), reply
    assert (reply["state_reason"] is not None) == ("reported" in variables + transcript), reply
    cells = life.notebook(gateway)
    assert (cells[0], cells[-1]) == (WRITE.format(1) if TRANSCRIPT[transcript] else TELL, TELL)
    assert len(cells) == (3 if TRANSCRIPT[transcript] else 1)
    after = gateway.execute(life.name, "")
    assert (after["state"], after["state_reason"]) == ("preserved", None)  # it is reported once
    again = life.retry(gateway)
    told = again.json()
    assert (again.status_code, (told["error"] or {}).get("code"), told.get("replayed")) == RETRY[retry], told
    life.ask(gateway, "DELETE")
