"""Memory that is promised to kernels: the sum of their limits, however much they use. Pure: no event loop, no clock.

A limit bounds one kernel. The sum of all limits is bounded here, so that kernels which use what they were promised do
not exhaust the host.
"""

from __future__ import annotations

from collections import Counter

from sessions.errors import QuotaExceeded

#: seconds after which a start that was refused may be tried again
RETRY_AFTER = 5
_MIB = 1024**2


class PromisedMemory:
    """The memory promised to all kernels together."""

    def __init__(self, most: int = 0) -> None:
        """Begin without kernels.

        Args:
            most: maximum of the sum in bytes; 0: no limit.
        """
        self._most = most
        self._sizes: dict[str, int] = {}
        self._holders: Counter[str] = Counter()

    @property
    def promised(self) -> int:
        """Bytes promised to all kernels together."""
        return sum(self._sizes.values())

    def promise(self, place: str, size: int) -> None:
        """Promise memory to a kernel. Then `release` must follow.

        Args:
            place: what the promise is for. A kernel and the kernel that replaces it have one place, and one promise.
            size: bytes.

        Raises:
            QuotaExceeded: when the sum would exceed the maximum.
        """
        more = max(0, size - self._sizes.get(place, 0))
        if self._most and self.promised + more > self._most:
            raise QuotaExceeded(
                f"all kernels together may be promised {self._most // _MIB} MiB of memory, and "
                f"{self.promised // _MIB} MiB are",
                limit="memory_in_all",
                max=self._most,
                retry_after=RETRY_AFTER,
            )
        self.hold(place, size)

    def hold(self, place: str, size: int) -> None:
        """Count the memory of a kernel that runs already. Then `release` must follow."""
        self._sizes[place] = max(size, self._sizes.get(place, 0))
        self._holders[place] += 1

    def release(self, place: str) -> None:
        """Record that a kernel is gone."""
        self._holders[place] -= 1
        if not self._holders[place]:
            del self._holders[place], self._sizes[place]
