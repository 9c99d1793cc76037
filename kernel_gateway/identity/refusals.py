"""How soon a request that is refused before its key was checked, or because of its key, gets its answer.

Such a request takes about a millisecond of the event loop, for which all clients wait, and no tenant's quota bounds it.
So whoever sends very many, for example to guess a key or a path, gets the answers late, and most clients then ask more
slowly.
"""

from __future__ import annotations

from collections.abc import Callable

#: refusals per second that are answered at once, and refusals that may come at once before that
RATE, BURST = 100.0, 20
#: seconds that a refusal waits at most
LONGEST = 2.0


class RefusalPace:
    """Spreads refusals over time. One pace is for all clients: only refused requests wait for one another."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without refusals.

        Args:
            clock: returns the time in seconds, from any beginning.
        """
        self._clock = clock
        #: time of the next refusal's turn
        self._next = clock()

    def pause(self) -> float:
        """Return the seconds that a refusal must wait now, and give the next one the turn after it."""
        now = self._clock()
        turn = max(self._next, now - BURST / RATE)
        self._next = min(turn, now + LONGEST) + 1 / RATE
        return min(LONGEST, max(0.0, turn - now))
