"""Watches directories for changes, for the service `filesystem.Filesystem`. Source: `envd`'s `filesystem.proto`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.e2b.connect import STREAM, ServerStreamHandler, UnaryHandler, message_of
from kernel_gateway.dialects.e2b.filesystem import OnePath
from kernel_gateway.dialects.e2b.models import Body
from kernel_gateway.http.keepalive import with_keepalive
from sessions.guest.watching import Change
from sessions.model.errors import SessionError

#: maximum changes that are sent together
AT_ONCE = 500


class Watch(OnePath):
    """A directory to watch."""

    recursive: bool = False


class Watcher(Body):
    """The id of a watcher."""

    watcherId: str = ""  # noqa: N815 - the wire's name


def event_model(change: Change) -> dict[str, Any]:
    """Return a change as clients see it."""
    return {"name": change.path, "type": f"EVENT_TYPE_{change.kind.upper()}"}


class WatchHandler(ServerStreamHandler):
    """`WatchDir`."""

    async def post(self) -> None:
        """Send the changes in a directory until the client leaves."""
        await self.run_until_client_leaves(self._watch(message_of(Watch, self.message())))

    async def _watch(self, body: Watch) -> None:
        async with aclosing(self.sandbox.watchers.stream(body.path, recursive=body.recursive)) as looks:
            await anext(looks)
            self.set_header("Content-Type", STREAM)
            self.http.stream.set_nodelay(True)
            try:
                await self.send({"start": {}})
                async with aclosing(with_keepalive(looks, self.pause())) as coming:
                    async for changes in coming:
                        await self._tell(changes)
            except SessionError as error:
                self.finish_stream(error)
            except StreamClosedError:
                return
            except TimeoutError:
                self.http.close()

    async def _tell(self, changes: list[Change] | None) -> None:
        if changes is None:
            await self.send({"keepalive": {}})
            return
        for start in range(0, len(changes), AT_ONCE):
            await self.send(*({"filesystem": event_model(change)} for change in changes[start : start + AT_ONCE]))


class CreateHandler(UnaryHandler):
    """`CreateWatcher`."""

    async def post(self) -> None:
        """Create a watcher of a directory. The client asks for the changes later."""
        body = self.body(Watch)
        self.finish_json({"watcherId": await self.sandbox.watchers.add(body.path, recursive=body.recursive)})


class EventsHandler(UnaryHandler):
    """`GetWatcherEvents`."""

    async def post(self) -> None:
        """Return the changes since the last call."""
        changes = await self.sandbox.watchers.look(self.body(Watcher).watcherId)
        self.finish_json({"events": [event_model(change) for change in changes]})


class RemoveHandler(UnaryHandler):
    """`RemoveWatcher`."""

    async def post(self) -> None:
        """Remove a watcher."""
        await self.sandbox.watchers.remove(self.body(Watcher).watcherId)
        self.finish_json({})
