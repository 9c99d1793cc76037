"""The warm kernels of one language, and how many of them there ought to be.

That number begins at `size`. A session that finds none makes it grow by one; when for a while some were never needed,
it shrinks by those. Nothing is started or ended here.
"""

from __future__ import annotations

from collections import deque

from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec

#: seconds over which it is seen how many were never needed
QUIET = 300.0
#: seconds before a start that failed is tried again without being asked, and between two that replace dead kernels
PAUSE = 30.0


class Shelf:
    """Kernels that wait, oldest first."""

    def __init__(self, kernelspec: KernelSpec, size: int, most: int, now: float) -> None:
        """Begin empty.

        Args:
            kernelspec: of all of them.
            size: how many there ought to be at least; 0: never any.
            most: how many there may ever be, if that is more.
            now: the time in seconds, as in all that follows.
        """
        self.kernelspec = kernelspec
        #: how many there ought to be
        self.target = size
        #: before then nothing is started here that nobody asked for
        self.paused_until = now
        self._size = size
        self._most = max(size, most) if size else 0
        self._warm: deque[Kernel] = deque()
        #: since when, and the fewest that were left by a session meanwhile
        self._since = now
        self._spare = size

    def __len__(self) -> int:
        return len(self._warm)

    @property
    def lacking(self) -> bool:
        """Whether one more ought to be there."""
        return len(self._warm) < self.target

    def put(self, kernel: Kernel) -> None:
        """A kernel that is to wait here."""
        self._warm.append(kernel)

    def take(self) -> Kernel | None:
        """The kernel that has waited longest, which is here no more; None when there is none."""
        if not self._warm:
            return None
        kernel = self._warm.popleft()
        self._spare = min(self._spare, len(self._warm))
        return kernel

    def drop(self, kernel: Kernel) -> bool:
        """Remove a kernel that has ended.

        Returns:
            whether it still waited here.
        """
        if kernel not in self._warm:
            return False
        self._warm.remove(kernel)
        return True

    def missed(self) -> None:
        """A session came, and there was none for it."""
        self.target = min(self.target + 1, self._most)
        self._spare = 0

    def pause(self, now: float) -> None:
        """Start nothing by ourselves for a while."""
        self.paused_until = now + PAUSE

    def shrink(self, now: float) -> list[Kernel]:
        """Let go of what was not needed for long enough.

        Returns:
            kernels to be ended, which are here no more.
        """
        if now - self._since >= QUIET:
            self.target = max(self._size, self.target - self._spare)
            self._since, self._spare = now, self.target
        return [self._warm.pop() for _ in range(len(self._warm) - self.target)]

    def clear(self) -> list[Kernel]:
        """Let go of all."""
        kernels = list(self._warm)
        self._warm.clear()
        return kernels
