"""Environment variables for one cell: they are set before the cell, and the session's own are restored after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sessions.kernels.kernel import Kernel
from sessions.model.errors import ConnectionFailed
from sessions.model.kernelspecs import KernelSpec


class CellEnvironment:
    """Changes the environment of a session's kernels before and after cells. A kernel runs its requests in order."""

    def __init__(self, kernelspec: KernelSpec, own: Mapping[str, str]) -> None:
        """Keep the parameters.

        Args:
            kernelspec: has the code that sets variables, for kernels that take no variables with a cell.
            own: the session's own variables.
        """
        self._kernelspec = kernelspec
        self._own = own
        #: whether the kernel takes a cell's variables in the cell's own request, and restores the old ones itself
        self._with_cell = kernelspec.extras

    def set(self, kernel: Kernel, env: Mapping[str, str | None]) -> None:
        """Set variables before a cell, unless the kernel takes them with the cell. A value of None removes a variable.

        Raises:
            InvalidRequest: when the language has no code that sets variables.
            ConnectionFailed: when the kernel takes no messages.
        """
        if env and not self._with_cell:
            silent = {"silent": True, "store_history": False, "allow_stdin": False}
            kernel.connection.send("shell", "execute_request", {"code": self._kernelspec.env_code(env)} | silent)

    async def reset(self, kernel: Kernel, names: Iterable[str]) -> None:
        """Restore the session's own variables after a cell, unless the kernel does that itself."""
        own = {name: self._own.get(name) for name in names}
        if own and not self._with_cell:
            await kernel.interrupts.settle()
            with suppress(ConnectionFailed):  # the kernel has ended, and its variables with it
                self.set(kernel, own)
