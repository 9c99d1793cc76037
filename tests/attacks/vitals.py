"""Conditions that a gateway must meet in spite of its kernels; they are checked after every attack.

Bounds on seconds, memory and descriptors are for tests outside the gate, because they depend on the machine.
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
#: bytes that a cell prints as a control of the gateway's memory for output: nearly as many as the gateway keeps
PRINTED = 8 * MIB
#: expected memory of an attack, as a multiple of such a cell's memory: memory that stays, and the peak
KEPT = 1.0
PEAK = 2.0
#: descriptors of each kind allowed beyond those at rest, for work in progress: a leak adds up over the tests. The
#: engine's client keeps up to 25 connections, which are sockets of the file system.
DESCRIPTORS_MORE = {"file": 2, "event": 12, "network": 12, "other": 32}
#: seconds in which the gateway gives back memory that it no longer needs
FREED = 10.0
#: seconds until the gateway is at rest
QUIESCE = 60.0
#: seconds without a new kernel after which no further one is expected
SETTLED = 2.0
#: bytes that one attack may make the gateway log
LOGGED_MAX = 256 * 1024
#: calls of the neighbour at rest; the slowest is the control of its calls during and after an attack
CALLS = 20
#: expected wait of the neighbour, as a multiple of this control: while an attack uses a processor, and after it
UNDER_ATTACK = 12.0
AFTER_ATTACK = 4.0
#: expected wait of an attacker for the report of its kernel's death, as a multiple of the same control
AT_ONCE = 10.0
#: seconds between two calls of the neighbour
BEAT = 0.2


class Neighbour:
    """Another tenant's session, which an attack must not disturb."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        reply = gateway.execute("neighbour", "n = 40", tenant="bob")
        assert reply["status"] == "ok", reply

    @functools.cached_property
    def usual(self) -> float:
        """Seconds until the neighbour gets its answer at rest."""
        return max(self.ask() for _ in range(CALLS))

    def ask(self) -> float:
        """Run a cell, check its answer, and return the seconds that the answer took."""
        began = time.monotonic()
        reply = self._gateway.execute("neighbour", "print(n + 1 + 1)", tenant="bob", timeout=10)
        assert (reply["status"], reply["state"], text_of(reply)) == ("ok", "preserved", "42\n"), reply
        return time.monotonic() - began

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Let the neighbour call all the time, and hold its longest wait against the control."""
        with all_the_time(self.ask, BEAT) as latencies:
            yield
        hold("a neighbour's answer during an attack or a fault", max(latencies), lambda: UNDER_ATTACK * self.usual)

    def prints(self, size: int) -> None:
        """Let the neighbour print as much as an honest cell may."""
        reply = self._gateway.execute("neighbour", f"print('x' * {size})", tenant="bob", timeout=60)
        assert reply["status"] == "ok", reply


@dataclass
class Vitals:
    """A gateway at rest, to be compared with the same gateway after an attack."""

    gateway: Gateway
    neighbour: Neighbour
    #: containers at rest: the neighbour's and those of warm kernels
    containers: int
    memory: int = field(init=False)
    descriptors: Counter[str] = field(init=False)
    log_size: int = field(init=False)
    #: bytes of memory that the gateway needs while an honest cell prints much, before any attack; 0 if not measured
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
        """Seconds between the deadline of a cell that ignores interrupts and the report of its end."""
        control = Attacker(self.gateway, "control")
        late = control.lateness()
        control.end()
        return late

    def check(self) -> None:
        """Fail unless the gateway is in the same condition as before."""
        assert self.gateway.process.poll() is None, "the gateway has ended"
        latency = self.neighbour.ask()
        wait_until(lambda: len(self.gateway.containers()) <= self.containers, self.gateway.containers)
        news = self._news()
        assert faults(news) == []
        hold("a neighbour's answer after an attack or a fault", latency, lambda: AFTER_ATTACK * self.neighbour.usual)
        if FIGURES.alone:
            hold("memory that the gateway keeps", self._kept(), KEPT * self.printing, "MiB")
            wait_until(lambda: self._too_many() == {}, lambda: (self._too_many(), self.descriptors))
            assert len(news) < LOGGED_MAX

    def _kept(self) -> int:
        """Return the bytes more than at rest, after the gateway had time to free memory."""
        deadline = time.monotonic() + FREED
        while self.gateway.memory() - self.memory > KEPT * self.printing and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.gateway.memory() - self.memory

    def _settled(self) -> Counter[str]:
        """Return the open descriptors at rest: a container exists before its kernel is connected."""
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
        """Return the log lines since the last check."""
        with self.gateway.log.open("rb") as file:
            file.seek(self.log_size)
            news = file.read()
        self.log_size += len(news)
        return news.decode()

    @contextlib.contextmanager
    def bounded(self, times: float = 1.0) -> Iterator[None]:
        """Hold the gateway's peak of memory against its memory for printing."""
        with self.gateway.growth() as growth:
            yield
        hold("the gateway's memory at its peak", growth.bytes, times * PEAK * self.printing, "MiB")


def descriptors(pid: int) -> Counter[str]:
    """Count the open descriptors of a process by kind."""
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
    """Call a function from another thread, twice at least; the list fills with its results.

    Args:
        ask: function that asks, and returns the seconds that the answer took; its errors fail the test.
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
        except BaseException as error:  # noqa: BLE001 - reported to the test below
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
    """Return the lines of a log that report a defect."""
    return [line for line in log.splitlines() if _tells_of_a_fault(line)]


def _tells_of_a_fault(line: str) -> bool:
    words = ("Traceback", "background task failed", "Task exception was never retrieved", "Exception in callback")
    if any(word in line for word in words):
        return True
    try:
        record = json.loads(line)
    except ValueError:
        return True  # every line of the gateway is a record: other lines are written by the interpreter
    return "exception" in record or record.get("level") in {"error", "critical"}


def wait_until(
    condition: Callable[[], bool], seen: Callable[[], Any] = lambda: "nothing", seconds: float = QUIESCE
) -> None:
    """Wait until a condition holds; `seen` describes the present state for the failure message."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {seen()}"
        time.sleep(0.1)
