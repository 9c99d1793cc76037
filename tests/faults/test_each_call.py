"""In a session's whole life the n-th call of the engine, or the n-th write to a database, fails; for every n.

As SQLite is tested with each allocation failing in turn: each failure is reported with a code, nothing is left over,
and the next session works.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.attacks.vitals import wait_until
from tests.faults.conftest import NEVER, Sleepy, Troubled
from tests.faults.health import at_rest, no_memory_is_left, nothing_is_left
from tests.faults.kept import LIVES, Life
from tests.faults.life import live, works
from tests.faults.proxy import Fault
from tests.gateways import Gateway, gateway
from tests.kernel_gateway.calls import kernels, metric

#: a life has at least this many calls and writes, and at most so many
LEAST, MOST = 10, 60
#: calls other than the gateway's periodic ones, which do not depend on clients
CALLS_FOR_CLIENTS = r"(?!GET /(events|version|info|containers/json|volumes|images/.*|networks/.*)$).*"
DATABASE = Path(__file__).parent / "database"

_names = (f"life-{number}" for number in itertools.count())


@pytest.mark.engine
@pytest.mark.timeout(900)  # about twenty lives, and a rest before each
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.CUT])
def test_whichever_call_of_the_engine_fails_nothing_is_left_and_the_next_session_works(
    troubled: Troubled, fault: Fault
) -> None:
    for n in range(1, MOST):
        at_rest(troubled.gateway, troubled.engine)
        rule = troubled.engine.fail(fault, CALLS_FOR_CLIENTS, nth=n)
        live(troubled.gateway, next(_names))
        nothing_is_left(troubled.gateway)
        troubled.engine.heal()
        wait_until(troubled.gateway.ready)
        works(troubled.gateway, next(_names))
        if not rule.struck:
            break
    assert LEAST < n < MOST, "a life has more calls, and an end"


#: the n-th call is never made, is made and never answered, or gets no byte of an answer; the last one, and all calls
#: of the next seconds, find no engine. Seconds for which it lasts, and the first n: each sweep takes every third one
SILENT = {
    "hangs": (Fault.HANG, 0.0, 1),
    "is mute": (Fault.MUTE, 0.0, 2),
    "is refused": (Fault.REFUSE, 0.0, 3),
    "finds no engine for a while": (Fault.REFUSE, 3.0, 2),
}
EVERY = 3
#: tasks of the gateway's event loop beyond those at rest, for a connection that is not closed yet
TASKS_MORE = 8


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "lasts", "first"), SILENT.values(), ids=SILENT)
def test_whichever_call_gets_no_answer_nothing_is_left_and_the_next_session_works(
    impatient: Troubled, fault: Fault, lasts: float, first: int
) -> None:
    gateway, engine = impatient.gateway, impatient.engine
    at_rest(gateway, engine)
    tasks = metric(gateway, "kernel_gateway_tasks")
    for n in range(first, MOST, EVERY):
        at_rest(gateway, engine)
        rule = engine.fail(fault, CALLS_FOR_CLIENTS, nth=n, lasts=lasts)
        live(gateway, next(_names))
        engine.heal()
        wait_until(gateway.ready)
        nothing_is_left(gateway)
        works(gateway, next(_names))
        if not rule.struck:
            break
    assert LEAST < n < MOST, "a life has more calls, and an end"
    wait_until(lambda: metric(gateway, "kernel_gateway_tasks") <= tasks + TASKS_MORE)


# -- copies and sleep -------------------------------------------------------------------------------------------

#: also the calls with which the gateway finds the runtime, because it does so for each copy
CALLS_FOR_COPIES = r"(?!GET /(events|version|containers/json|volumes|images/.*|networks/.*)$).*"
#: each step in trouble has at least this many
FEWEST = 5
#: the n-th call is never made, or is made and its answer is cut. The first n, and the steps to the next ones
CALLS_FAIL = {"fails": (Fault.ERROR, 1, 1), "is cut": (Fault.CUT, 2, EVERY)}


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "first", "every"), CALLS_FAIL.values(), ids=CALLS_FAIL)
@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_whichever_call_of_the_engine_fails_variables_are_kept_or_reported_as_lost(
    sleepy: Sleepy, life: Life, fault: Fault, first: int, every: int
) -> None:
    @contextmanager
    def trouble(n: int, struck: list[bool]) -> Iterator[None]:
        rule = sleepy.engine.fail(fault, CALLS_FOR_COPIES, nth=n)
        yield
        sleepy.engine.heal()
        wait_until(sleepy.gateway.ready)
        struck.append(rule.struck > 0)

    assert lives(sleepy, life, range(first, MOST, every), trouble) > FEWEST


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["early", "late"])
@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_whichever_command_to_gvisor_fails_variables_are_kept_or_reported_as_lost(
    sleepy: Sleepy, life: Life, way: str
) -> None:
    @contextmanager
    def trouble(n: int, struck: list[bool]) -> Iterator[None]:
        sleepy.countdown.write_text(f"{n} {way}")
        yield
        left, _ = sleepy.countdown.read_text().split()
        sleepy.countdown.write_text(NEVER)
        struck.append(int(left) <= 0)

    assert lives(sleepy, life, range(1, MOST), trouble) > 1


def lives(
    sleepy: Sleepy,
    life: Life,
    numbers: Iterable[int],
    trouble: Callable[[int, list[bool]], AbstractContextManager[None]],
) -> int:
    """Live once for each number of a call that fails, until none does; check that nothing is left of each life.

    Returns:
        the number at which none has failed.
    """
    for n in numbers:
        at_rest(sleepy.gateway, sleepy.engine)
        struck: list[bool] = []
        life(sleepy.gateway, next(_names), partial(trouble, n, struck))
        nothing_is_left(sleepy.gateway)
        no_memory_is_left(sleepy.gateway)
        sleepy.vitals.check()  # each time, because one life may log so much and no more
        if not any(struck):
            return n
    raise AssertionError("a life has an end")


@dataclass(frozen=True)
class Fragile:
    """A gateway with plain processes whose databases fail on demand."""

    gateway: Gateway
    #: number of the write that fails; gone when it has failed
    countdown: Path
    #: the directory of all workspaces
    root: Path

    def workspaces(self) -> list[Path]:
        """Return the directories that sessions have left."""
        return list(self.root.glob("kernel-gateway-*/workspaces/*"))


@pytest.fixture(scope="module")
def fragile() -> Iterator[Fragile]:
    with tempfile.TemporaryDirectory(prefix="kgw-w-") as directory, pytest.MonkeyPatch.context() as environment:
        root = Path(directory)
        environment.setenv("PYTHONPATH", str(DATABASE))
        environment.setenv("FAIL_WRITE", str(root / "countdown"))
        environment.setenv("TMPDIR", directory)
        with gateway("process") as serving:
            yield Fragile(serving, root / "countdown", root)


@pytest.mark.full
@pytest.mark.timeout(900)  # some tens of lives, each with three kernels, and a session after each
def test_whichever_write_to_a_database_fails_nothing_is_left_and_the_next_session_works(fragile: Fragile) -> None:
    for n in range(1, MOST):
        fragile.countdown.write_text(str(n))
        live(fragile.gateway, next(_names))
        failed = not fragile.countdown.exists()
        fragile.countdown.unlink(missing_ok=True)
        wait_until(lambda: kernels(fragile.gateway) == 0, lambda: kernels(fragile.gateway))
        wait_until(lambda: fragile.workspaces() == [], fragile.workspaces)
        works(fragile.gateway, next(_names))
        told = [record["event"] for record in fragile.gateway.errors()]
        assert all("cannot be written" in event for event in told), told
        if not failed:
            break
    assert LEAST < n < MOST, "a life has more writes, and an end"
