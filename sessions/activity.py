"""When clients last used a session or sandbox, and whether one is using it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """Use of one session or sandbox by clients."""

    def __init__(self, clock: Callable[[], float], age: float = 0.0) -> None:
        """Start with a use at the present time.

        Args:
            clock: function that returns seconds.
            age: seconds since an earlier gateway made the session or sandbox; 0: made now.
        """
        self._clock = clock
        self._last = clock()
        self._began = self._last - age
        #: number of uses under way
        self.users = 0

    def touch(self) -> None:
        """Record that a client has used the session or sandbox."""
        self._last = self._clock()

    def age(self) -> float:
        """Return the seconds since the session or sandbox was made."""
        return self._clock() - self._began

    def idle_for(self) -> float:
        """Return the seconds since a client's last use; 0 during a use."""
        return 0.0 if self.users else self._clock() - self._last

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count a client's use for as long as the context lasts."""
        self.touch()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.touch()
