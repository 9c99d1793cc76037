"""What tenants have used within the last hour, or however long the window is. Pure: the clock is given.

The window slides in grains of a sixtieth: what is remembered is of the same size however much is done, and nothing is
forgotten before its time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sessions.errors import QuotaExceeded

#: parts of a window that are forgotten one by one
GRAINS = 60


class Kind(StrEnum):
    """What is counted, as clients are told."""

    SECONDS = "execution_seconds"
    OUTPUT = "output_bytes"
    UPLOAD = "upload_bytes"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a tenant may use within a window; 0: no limit."""

    #: seconds that count
    window: float = 3600.0
    #: of executions, added up
    seconds: float = 0.0
    #: bytes that executions put out
    output: int = 0
    #: bytes of files
    upload: int = 0

    def of(self, kind: Kind) -> float:
        """The limit of one kind."""
        return {Kind.SECONDS: self.seconds, Kind.OUTPUT: self.output, Kind.UPLOAD: self.upload}[kind]


class Window:
    """How much of one kind a tenant has used."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grain = seconds / GRAINS
        #: number of a grain, and how much in it
        self._used: deque[tuple[int, float]] = deque()

    def add(self, at: float, amount: float) -> None:
        """Count something. What is told too late counts as if it had just been."""
        number = math.floor(at / self._grain)
        if self._used and self._used[-1][0] >= number:
            number, more = self._used.pop()
            amount += more
        self._used.append((number, amount))

    def _end(self, number: int) -> float:
        """When a grain is forgotten."""
        return (number + 1) * self._grain + self._seconds

    def used(self, now: float) -> float:
        """How much counts."""
        while self._used and self._end(self._used[0][0]) <= now:
            self._used.popleft()
        return math.fsum(amount for _, amount in self._used)

    def full_for(self, now: float, limit: float) -> float:
        """Seconds until less than a limit counts; 0: it is so now."""
        rest = self.used(now)
        until = now
        for number, amount in self._used:
            if rest < limit:
                break
            rest -= amount
            until = self._end(number)
        return until - now


class Usage:
    """Of all tenants."""

    def __init__(self, allowance: Allowance, clock: Callable[[], float]) -> None:
        """Begin with nothing used.

        Args:
            allowance: of each tenant.
            clock: seconds.
        """
        self._allowance = allowance
        self._clock = clock
        self._windows: dict[tuple[str, Kind], Window] = {}

    def permit(self, tenant: str, *kinds: Kind) -> None:
        """Allow a tenant to use more.

        Raises:
            QuotaExceeded: it has used up what it may of one of these kinds.
        """
        for kind in kinds:
            limit, window = self._allowance.of(kind), self._windows.get((tenant, kind))
            if window is None or not (seconds := window.full_for(self._clock(), limit)):
                continue
            raise QuotaExceeded(
                f"the tenant's {limit:.15g} {kind.replace('_', ' ')} per {self._allowance.window:g} s are used up",
                limit=kind.value,
                max=limit,
                retry_after=math.ceil(seconds),
            )

    def used(self, tenant: str, kind: Kind) -> float | None:
        """How much a tenant has used; None: it has no limit, and nobody counts."""
        if not self._allowance.of(kind):
            return None
        window = self._windows.get((tenant, kind))
        return 0.0 if window is None else window.used(self._clock())

    def add(self, tenant: str, kind: Kind, amount: float, ago: float = 0.0) -> None:
        """Count what a tenant has used.

        Args:
            tenant: who.
            kind: of what.
            amount: how much.
            ago: seconds since then; the older comes first.
        """
        if self._allowance.of(kind) and amount > 0 and ago < self._allowance.window:
            window = self._windows.setdefault((tenant, kind), Window(self._allowance.window))
            window.add(self._clock() - ago, amount)
