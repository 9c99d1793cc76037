"""What must hold for a gateway whatever its kernels do: checked after every attack.

Bounds on seconds, memory and descriptors are for tests outside the gate: what they say depends on the machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attacks.cells import Attacker
from tests.figures import FIGURES, hold
from tests.gateways import Gateway, text_of

MIB = 1024**2
#: bytes that a cell prints as a control of what output costs the gateway: nearly as many as it keeps
PRINTED = 8 * MIB
#: what is expected of an attack, as a multiple of what such a cell takes of memory: what stays, and at its peak
KEPT = 1.0
PEAK = 2.0
#: descriptors of each kind beyond those at rest, for what is under way: a leak adds up over the tests. The engine's
#: client keeps up to 25 connections, which are sockets of the file system.
DESCRIPTORS_MORE = {"file": 2, "event": 12, "network": 12, "other": 32}
#: seconds in which memory that is no longer needed is given back
FREED = 10.0
#: seconds to come to rest
QUIESCE = 60.0
#: seconds without a new kernel after which none comes
SETTLED = 2.0
#: bytes that one attack may make the gateway log
LOGGED_MAX = 256 * 1024
#: calls of the neighbour at rest; the slowest is the control of those while an attack runs and after it
CALLS = 20
#: how many times as long it is expected to wait: while an attack takes a processor, and after that
UNDER_ATTACK = 12.0
AFTER_ATTACK = 4.0
#: and an attacker, to be told that its kernel is no more
AT_ONCE = 10.0
#: seconds between two calls of the neighbour
BEAT = 0.2


class Neighbour:
    """Another tenant's session, which must notice nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        reply = gateway.execute("neighbour", "n = 40", tenant="bob")
        assert reply["status"] == "ok", reply

    @functools.cached_property
    def usual(self) -> float:
        """Seconds until it is answered at rest."""
        return max(self.ask() for _ in range(CALLS))

    def ask(self) -> float:
        """Seconds until its cell was answered, and answered rightly."""
        began = time.monotonic()
        reply = self._gateway.execute("neighbour", "print(n + 1 + 1)", tenant="bob", timeout=10)
        assert (reply["status"], reply["state"], text_of(reply)) == ("ok", "preserved", "42\n"), reply
        return time.monotonic() - began

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Let it call all the time, and hold how long it waits."""
        with all_the_time(self.ask, BEAT) as latencies:
            yield
        hold("a neighbour's answer while something goes on", max(latencies), lambda: UNDER_ATTACK * self.usual)

    def prints(self, size: int) -> None:
        """Let it print as an honest cell may."""
        reply = self._gateway.execute("neighbour", f"print('x' * {size})", tenant="bob", timeout=60)
        assert reply["status"] == "ok", reply


@dataclass
class Vitals:
    """A gateway at rest, to be compared with the same gateway after an attack."""

    gateway: Gateway
    neighbour: Neighbour
    #: containers at rest: the neighbour's and the warm ones
    containers: int
    memory: int = field(init=False)
    descriptors: Counter[str] = field(init=False)
    log_size: int = field(init=False)
    #: bytes of memory that the gateway takes while an honest cell prints much, before any attack; 0 if nothing is held
    printing: int = 0

    def __post_init__(self) -> None:
        wait_until(lambda: len(self.gateway.containers()) == self.containers, seconds=60)
        self.descriptors = self._settled()
        self.memory = self.gateway.memory()
        self.log_size = self.gateway.log.stat().st_size
        if FIGURES.alone:
            with self.gateway.growth() as growth:
                self.neighbour.prints(PRINTED)
            self.printing = growth.bytes

    @functools.cached_property
    def late(self) -> float:
        """Seconds after its deadline until the end of a cell is told that ignores interrupts."""
        control = Attacker(self.gateway, "control")
        late = control.lateness()
        control.end()
        return late

    def check(self) -> None:
        """Fail unless the gateway is as well as it was."""
        assert self.gateway.process.poll() is None, "the gateway has ended"
        latency = self.neighbour.ask()
        wait_until(lambda: len(self.gateway.containers()) <= self.containers, self.gateway.containers)
        news = self._news()
        assert faults(news) == []
        hold("a neighbour's answer after it", latency, lambda: AFTER_ATTACK * self.neighbour.usual)
        if FIGURES.alone:
            hold("memory that the gateway keeps", self._kept(), KEPT * self.printing, "MiB")
            wait_until(lambda: self._too_many() == {}, lambda: (self._too_many(), self.descriptors))
            assert len(news) < LOGGED_MAX

    def _kept(self) -> int:
        """Bytes more than at rest, once what is about to be freed is freed."""
        deadline = time.monotonic() + FREED
        while self.gateway.memory() - self.memory > KEPT * self.printing and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.gateway.memory() - self.memory

    def _settled(self) -> Counter[str]:
        """What is open at rest: a container is there before its kernel is connected."""
        before = descriptors(self.gateway.process.pid)
        for _ in range(int(QUIESCE / SETTLED)):
            time.sleep(SETTLED)
            now = descriptors(self.gateway.process.pid)
            if now["event"] == before["event"]:
                return now
            before = now
        raise AssertionError(f"the gateway does not come to rest: {before}")

    def _too_many(self) -> dict[str, int]:
        now = descriptors(self.gateway.process.pid)
        return {kind: now[kind] for kind, more in DESCRIPTORS_MORE.items() if now[kind] > self.descriptors[kind] + more}

    def _news(self) -> str:
        """What was logged since the last check."""
        with self.gateway.log.open("rb") as file:
            file.seek(self.log_size)
            news = file.read()
        self.log_size += len(news)
        return news.decode()

    @contextlib.contextmanager
    def bounded(self, times: float = 1.0) -> Iterator[None]:
        """Hold the gateway's memory meanwhile against what printing costs it."""
        with self.gateway.growth() as growth:
            yield
        hold("the gateway's memory at its peak", growth.bytes, times * PEAK * self.printing, "MiB")


def descriptors(pid: int) -> Counter[str]:
    """What a process has open, by kind."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6", "udp")]
    network = {f"socket:[{line.split()[9]}]" for table in tables for line in table}
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            kinds[_kind(str(link.readlink()), network)] += 1
    return kinds


def _kind(target: str, network: set[str]) -> str:
    if target.startswith("socket:"):
        return "network" if target in network else "other"
    return "event" if target.startswith("anon_inode:") else "file"


@contextlib.contextmanager
def all_the_time(ask: Callable[[], float], beat: float) -> Iterator[list[float]]:
    """Call something from another thread, twice at least; the list fills with what it answers.

    Args:
        ask: asks, and says how many seconds the answer took; what it raises fails the test.
        beat: seconds between an answer and the next call.
    """
    answers: list[float] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def call() -> None:
        try:
            answers.extend([ask(), ask()])
            while not over.wait(beat):
                answers.append(ask())
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failures.append(error)

    caller = threading.Thread(target=call, name="all the time")
    caller.start()
    try:
        yield answers
    finally:
        over.set()
        caller.join(60)
    assert not failures, failures


def faults(log: str) -> list[str]:
    """The lines of a log that tell of a defect."""
    return [line for line in log.splitlines() if _tells_of_a_fault(line)]


def _tells_of_a_fault(line: str) -> bool:
    words = ("Traceback", "background task failed", "Task exception was never retrieved", "Exception in callback")
    if any(word in line for word in words):
        return True
    try:
        record = json.loads(line)
    except ValueError:
        return True  # every line is a record: what else is written came from the interpreter itself
    return "exception" in record or record.get("level") in {"error", "critical"}


def wait_until(
    condition: Callable[[], bool], seen: Callable[[], Any] = lambda: "nothing", seconds: float = QUIESCE
) -> None:
    """Wait for something that must come to hold; `seen` says what is there instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {seen()}"
        time.sleep(0.1)
