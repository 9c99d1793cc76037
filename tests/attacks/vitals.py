"""What must hold for a gateway whatever its kernels do: checked after every attack.

Bounds on seconds, memory and descriptors are for tests outside the gate: what they say depends on the machine.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateways import Gateway, text_of

MIB = 1024**2
#: bytes that the gateway may keep, and take for a while, beyond what it had before the attack
KEPT_MAX = 64 * MIB
PEAK_MAX = 150 * MIB
#: descriptors of each kind beyond those at rest, for what is under way: a leak adds up over the tests. The engine's
#: client keeps up to 25 connections, which are sockets of the file system.
DESCRIPTORS_MORE = {"file": 2, "event": 12, "network": 12, "other": 32}
#: seconds to come to rest
QUIESCE = 60.0
#: seconds without a new kernel after which none comes
SETTLED = 2.0
#: bytes that one attack may make the gateway log
LOGGED_MAX = 256 * 1024
#: seconds within which a neighbour's `1+1` is answered: at rest, and while an attack runs
PROMPT = 2.0
PROMPT_UNDER_ATTACK = 5.0
#: seconds between two calls of the neighbour
BEAT = 0.2


class Neighbour:
    """Another tenant's session, which must notice nothing."""

    def __init__(self, gateway: Gateway, *, measured: bool = True) -> None:
        self._gateway = gateway
        #: whether its latencies, and in Vitals all else that depends on the machine, are held against their bounds
        self.measured = measured
        reply = gateway.execute("neighbour", "n = 40", tenant="bob")
        assert reply["status"] == "ok", reply

    def ask(self) -> float:
        """Seconds until its cell was answered, and answered rightly."""
        began = time.monotonic()
        reply = self._gateway.execute("neighbour", "print(n + 1 + 1)", tenant="bob", timeout=10)
        assert (reply["status"], reply["state"], text_of(reply)) == ("ok", "preserved", "42\n"), reply
        return time.monotonic() - began

    @contextlib.contextmanager
    def calling(self) -> Iterator[list[float]]:
        """Let it call all the time; the list fills with its latencies."""
        latencies: list[float] = []
        failures: list[BaseException] = []
        over = threading.Event()

        def call() -> None:
            try:
                latencies.append(self.ask())  # at least once, however short the attack is
                latencies.append(self.ask())
                while not over.wait(BEAT):
                    latencies.append(self.ask())
            except BaseException as error:  # noqa: BLE001 - told to the test below
                failures.append(error)

        caller = threading.Thread(target=call, name="neighbour")
        caller.start()
        try:
            yield latencies
        finally:
            over.set()
            caller.join(60)
        assert not failures, failures
        assert not self.measured or max(latencies) < PROMPT_UNDER_ATTACK, f"the neighbour waited {max(latencies):.1f} s"


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

    def __post_init__(self) -> None:
        wait_until(lambda: len(self.gateway.containers()) == self.containers, seconds=60)
        self.descriptors = self._settled()
        self.memory = self.gateway.memory()
        self.log_size = self.gateway.log.stat().st_size

    def check(self) -> None:
        """Fail unless the gateway is as well as it was."""
        assert self.gateway.process.poll() is None, "the gateway has ended"
        latency = self.neighbour.ask()
        wait_until(lambda: len(self.gateway.containers()) <= self.containers, self.gateway.containers)
        news = self._news()
        assert faults(news) == []
        if self.neighbour.measured:
            assert latency < PROMPT
            wait_until(lambda: self._too_many() == {}, lambda: (self._too_many(), self.descriptors))
            wait_until(lambda: self.gateway.memory() <= self.memory + KEPT_MAX, lambda: self.gateway.memory() / MIB)
            assert len(news) < LOGGED_MAX

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
    def bounded(self, most: int = PEAK_MAX) -> Iterator[None]:
        """Fail if the gateway's memory had a peak meanwhile; the system itself keeps the peak, no sample is missed."""
        Path(f"/proc/{self.gateway.process.pid}/clear_refs").write_text("5")
        yield
        more = peak(self.gateway.process.pid) - self.memory
        print(f"peak: {more / MIB:+.0f} MiB")
        assert not self.neighbour.measured or more < most, f"the gateway's memory rose by {more / MIB:.0f} MiB"


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


def peak(pid: int) -> int:
    """The most resident bytes a process has had. Source: proc(5), VmHWM and clear_refs."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


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
