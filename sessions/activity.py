"""When clients have used something, and whether one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """The use of one session or sandbox, from now on."""

    def __init__(self, clock: Callable[[], float], age: float = 0.0) -> None:
        """Begin.

        Args:
            clock: seconds.
            age: seconds since it was made, by an earlier gateway.
        """
        self._clock = clock
        self._last = clock()
        self._began = self._last - age
        #: uses under way
        self.users = 0

    def touch(self) -> None:
        """Note that a client has used it."""
        self._last = self._clock()

    def age(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._began

    def idle_for(self) -> float:
        """Seconds since a client last used it; 0 while one does."""
        return 0.0 if self.users else self._clock() - self._last

    @contextmanager
    def use(self) -> Iterator[None]:
        """A client uses it for as long as the context lasts."""
        self.touch()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.touch()
