"""Environment variables for one cell alone: they are set before the cell, and the session's own come back after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed
from sessions.model.kernelspecs import KernelSpec


class CellVariables:
    """Changes the environment of a session's kernels. A kernel runs what is sent to it in order."""

    def __init__(self, kernelspec: KernelSpec, own: Mapping[str, str]) -> None:
        """Set what does not change.

        Args:
            kernelspec: has the code that sets variables, if the kernel takes none with a cell.
            own: the session's own variables.
        """
        self._kernelspec = kernelspec
        self._own = own
        #: True: the kernel takes a cell's variables with the cell, and drops them itself
        self._with_cell = kernelspec.extras

    def set(self, kernel: Kernel, env: Mapping[str, str | None]) -> None:
        """Set variables, or remove those that are None, unless the kernel takes them with a cell.

        Raises:
            InvalidRequest: when the language has no code for that.
            ConnectionFailed: when the kernel takes no messages.
        """
        if env and not self._with_cell:
            silent = {"silent": True, "store_history": False, "allow_stdin": False}
            kernel.connection.send("shell", "execute_request", {"code": self._kernelspec.env_code(env)} | silent)

    async def reset(self, kernel: Kernel, names: Iterable[str]) -> None:
        """Give the session's own variables back after a cell that had others, unless the kernel does that itself."""
        own = {name: self._own.get(name) for name in names}
        if own and not self._with_cell:
            await kernel.interrupts.settle()
            with suppress(ConnectionFailed):  # the kernel has ended, and its variables with it
                self.set(kernel, own)
