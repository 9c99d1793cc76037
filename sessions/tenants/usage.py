"""What tenants have used within the window, by default the last hour. Pure: the clock is an argument.

The window slides in 60 grains. So its memory does not grow with a tenant's use, and no use is forgotten too early.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sessions.model.errors import QuotaExceeded

#: number of parts of a window; use is forgotten one part at a time
GRAINS = 60


class Kind(StrEnum):
    """Kinds of use that are counted, by the names that clients see."""

    SECONDS = "execution_seconds"
    OUTPUT = "output_bytes"
    UPLOAD = "upload_bytes"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a tenant may use within a window. 0 means no limit."""

    #: seconds of the window
    window: float = 3600.0
    #: run time of all executions in seconds
    seconds: float = 0.0
    #: bytes of output of executions
    output: int = 0
    #: bytes of uploaded files
    upload: int = 0

    def of(self, kind: Kind) -> float:
        """Return the limit of one kind."""
        return {Kind.SECONDS: self.seconds, Kind.OUTPUT: self.output, Kind.UPLOAD: self.upload}[kind]


class Window:
    """A tenant's use of one kind within the window."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grain = seconds / GRAINS
        #: numbers of grains, each with the amount used in it
        self._used: deque[tuple[int, float]] = deque()

    def add(self, at: float, amount: float) -> None:
        """Count an amount. An amount older than the newest grain counts in the newest grain."""
        number = math.floor(at / self._grain)
        if self._used and self._used[-1][0] >= number:
            number, more = self._used.pop()
            amount += more
        self._used.append((number, amount))

    def _end(self, number: int) -> float:
        """Return the time at which a grain is forgotten."""
        return (number + 1) * self._grain + self._seconds

    def used(self, now: float) -> float:
        """Return the amount that counts now."""
        while self._used and self._end(self._used[0][0]) <= now:
            self._used.popleft()
        return math.fsum(amount for _, amount in self._used)

    def seconds_until_below(self, now: float, limit: float) -> float:
        """Return the seconds until the use is below a limit, or 0 if it is below now."""
        rest = self.used(now)
        until = now
        for number, amount in self._used:
            if rest < limit:
                break
            rest -= amount
            until = self._end(number)
        return until - now


class Usage:
    """The use of all tenants."""

    def __init__(self, allowance: Allowance, clock: Callable[[], float]) -> None:
        """Start without use.

        Args:
            allowance: allowance of each tenant.
            clock: function that returns seconds.
        """
        self._allowance = allowance
        self._clock = clock
        self._windows: dict[tuple[str, Kind], Window] = {}

    def permit(self, tenant: str, *kinds: Kind) -> None:
        """Check that a tenant may use more.

        Raises:
            QuotaExceeded: when the tenant's allowance of one of these kinds is used up.
        """
        for kind in kinds:
            limit, window = self._allowance.of(kind), self._windows.get((tenant, kind))
            if window is None or not (seconds := window.seconds_until_below(self._clock(), limit)):
                continue
            raise QuotaExceeded(
                f"the tenant's {limit:.15g} {kind.replace('_', ' ')} per {self._allowance.window:g} s are used up",
                limit=kind.value,
                max=limit,
                retry_after=math.ceil(seconds),
            )

    def used(self, tenant: str, kind: Kind) -> float | None:
        """Return how much a tenant has used. None means that it is not counted, because there is no limit."""
        if not self._allowance.of(kind):
            return None
        window = self._windows.get((tenant, kind))
        return 0.0 if window is None else window.used(self._clock())

    def add(self, tenant: str, kind: Kind, amount: float, ago: float = 0.0) -> None:
        """Count what a tenant has used.

        Args:
            tenant: name of the tenant.
            kind: kind of use.
            amount: amount of use.
            ago: seconds since the use. The caller must count older use first.
        """
        if self._allowance.of(kind) and amount > 0 and ago < self._allowance.window:
            window = self._windows.setdefault((tenant, kind), Window(self._allowance.window))
            window.add(self._clock() - ago, amount)
