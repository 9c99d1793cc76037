"""Imports modules in a warm kernel ahead of need: those of `KernelSpec.preload`, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from kernel_image.protocol import GATEWAY_REQUESTS, PRELOAD_REQUEST
from sessions.kernels.connection import Connection
from sessions.kernels.messages import Message

#: seconds that the import of a module may take
TIMEOUT = 30.0


class Preloading:
    """The imports of one kernel."""

    def __init__(self, connection: Connection, before: Collection[str] = ()) -> None:
        """Begin without imports.

        Args:
            connection: connection to the kernel.
            before: modules that the kernel has already imported, or tried to import.
        """
        self._connection = connection
        self._importing = asyncio.Lock()
        #: modules that the kernel has imported, or tried to import
        self.tried = set(before)

    @property
    def under_way(self) -> bool:
        """Whether the kernel is importing a module."""
        return self._importing.locked()

    async def load(self, module: str) -> str:
        """Let the kernel import a module.

        Returns:
            why the import failed. Empty means that it succeeded.

        Raises:
            TimeoutError: when the import takes too long.
            ConnectionFailed: when the kernel ended meanwhile.
        """
        self.tried.add(module)
        async with self._importing, asyncio.timeout(TIMEOUT):
            reply = await self._connection.request("shell", PRELOAD_REQUEST, {"module": module})
        return str(reply.content.get("problem", ""))

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Wait until the present import has ended. No other import begins inside the `with` block."""
        async with self._importing:
            yield


def caused(message: Message) -> bool:
    """Return whether a request of the gateway itself has caused a message, as an import does: it belongs to no cell."""
    return message.parent.get("msg_type") in GATEWAY_REQUESTS
