"""Directories of a sandbox that clients watch. Clients get the changes as a stream, or ask for them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from sessions.guest.tools import ToolRunner, open_end
from sessions.guest.watching import ASK, Change, watch
from sessions.model.errors import ConnectionFailed, ProcessNotFound, QuotaExceeded, SessionError

#: maximum number of watched directories of a sandbox: each takes one of the tools that a container may run
WATCHERS_MAX = 4
#: seconds between two looks at a directory whose changes are streamed. A large directory takes longer.
EVERY = 0.25


class Watcher:
    """One directory whose client asks for the changes."""

    def __init__(self, host: ToolRunner, path: str, *, recursive: bool) -> None:
        self._asks: asyncio.Queue[bytes] = asyncio.Queue()
        self._looks = watch(host, path, self._input(), recursive=recursive, every=None)
        self._turn = asyncio.Lock()

    async def _input(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._asks.get()

    async def begin(self) -> None:
        """Begin to watch. The errors are those of `watch`."""
        async with self._turn:  # the end of the sandbox may come meanwhile
            await self._next()

    async def look(self) -> list[Change]:
        """Return the changes since the last look. The errors are those of `watch`."""
        async with self._turn:
            self._asks.put_nowait(ASK)
            return await self._next()

    async def _next(self) -> list[Change]:
        found = await anext(self._looks, None)
        if found is None:  # an earlier look was cut off
            raise ConnectionFailed("the directory is not watched any more")
        return found

    async def end(self) -> None:
        """Stop watching, when neither the beginning nor a look is under way any more."""
        async with self._turn:
            await self._looks.aclose()


class Watchers:
    """The watched directories of one sandbox."""

    def __init__(self, host: ToolRunner) -> None:
        """Begin without watched directories.

        Args:
            host: the sandbox.
        """
        self._host = host
        #: directories whose clients ask for changes, by the watcher's id
        self._asked: dict[str, Watcher] = {}
        #: number of directories whose changes are streamed
        self._streams = 0

    @property
    def present(self) -> bool:
        """Whether a directory is watched."""
        return bool(self._asked or self._streams)

    async def stream(self, path: str, *, recursive: bool) -> AsyncGenerator[list[Change], None]:
        """Watch a directory, and yield its changes when they happen; see `watch`. The first list is empty.

        Raises:
            QuotaExceeded: when the sandbox has too many watchers.
            SessionError: as in `watch`.
        """
        self._require_room()
        self._streams += 1
        try:
            async with aclosing(watch(self._host, path, open_end(), recursive=recursive, every=EVERY)) as looks:
                async for changes in looks:
                    yield changes
        finally:
            self._streams -= 1

    async def add(self, path: str, *, recursive: bool) -> str:
        """Watch a directory until `remove` or the sandbox's end, and return the new watcher's id.

        Raises:
            QuotaExceeded: when the sandbox has too many watchers.
            SessionError: as in `watch`.
        """
        self._require_room()
        name = secrets.token_hex(8)
        watcher = self._asked[name] = Watcher(self._host, path, recursive=recursive)
        try:
            await watcher.begin()
        except BaseException:
            self._asked.pop(name, None)  # `close` may have removed it
            raise
        return name

    async def look(self, name: str) -> list[Change]:
        """Return the changes in a directory since the last look.

        Raises:
            ProcessNotFound: when there is no watcher with this id.
            SessionError: as in `watch`. The watcher is removed then.
        """
        watcher = self._find(name)
        try:
            return await watcher.look()
        except SessionError:
            self._asked.pop(name, None)
            raise

    async def remove(self, name: str) -> None:
        """Stop watching a directory.

        Raises:
            ProcessNotFound: when there is no watcher with this id.
        """
        watcher = self._find(name)
        del self._asked[name]
        await watcher.end()

    async def close(self) -> None:
        """Remove the watchers whose clients ask, because the container has ended. The streams end with it."""
        while self._asked:
            await self._asked.popitem()[1].end()

    def _find(self, name: str) -> Watcher:
        if (watcher := self._asked.get(name)) is None:
            raise ProcessNotFound(f"there is no watcher {name[:64]!r}")
        return watcher

    def _require_room(self) -> None:
        if len(self._asked) + self._streams >= WATCHERS_MAX:
            raise QuotaExceeded(
                f"at most {WATCHERS_MAX} directories of a sandbox are watched at a time", max=WATCHERS_MAX
            )
