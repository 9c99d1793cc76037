"""`/ui/feed`: the WebSocket of the session page. It tells the tenant's sessions, and one session's cells as they run.

The page sends `{"open": NAME}` (null: no session) and `{"see": [NUMBER, …], "session": ID}`, the cells that are in
view. The feed looks at the sessions again and again, and sends what has changed: `sessions` has all sessions, `opened`
and `absent` begin the view of one, `session` says how it is now, `cells` has what a heading shows, and `outputs` the
further outputs of a cell in view. So a page that reads slowly gets the present state later, and nothing waits for it in
the gateway. To watch is no use of a session.

With `?tenant=NAME` an admin looks at the sessions of a tenant, where the setting `admin_looks` allows it. The feed
changes nothing, so such a look changes nothing either. The tenant's own pages are told, and the audit has each look.

A browser can send no header with a WebSocket. The key is a subprotocol that it offers: `key.` and the key in base64url.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import orjson
from pydantic import Field
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError

from kernel_gateway.errors import Forbidden, Unauthorized
from kernel_gateway.gateway import Gateway, Route
from kernel_gateway.http.metered import Metered
from kernel_gateway.http.request_body import Body, validated
from kernel_gateway.http.sockets import GOING_AWAY, ClientSocketHandler
from kernel_gateway.identity.auth import Caller
from kernel_gateway.identity.keystore import Role
from kernel_gateway.times import moment
from sessions.cells.notebook import with_list
from sessions.cells.outputs import Place, joined
from sessions.cells.transcript import Entry
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, SessionError, ShuttingDown
from sessions.model.tasks import spawn
from sessions.model.values import SessionKey, StateNotice, valid_name
from sessions.session.session import Session

#: the subprotocol that the gateway accepts, and the prefix of the one that carries the key
PROTOCOL, KEY_PREFIX = "kernel-gateway", "key."
#: the session in whose place the sockets of a tenant's pages are counted
PAGES = "ui"
#: seconds between two looks at the opened session, and at the list
LOOK, LIST = 0.1, 1.0
#: bytes that a page gets per second in the long run, and of outputs in one frame, which only a large output exceeds
RATE, FRAME = 8 * 1024**2, 64 * 1024
#: maximum number of cells in view, and characters of the code of a cell that is not
SEEN_MAX, CODE_MAX = 64, 300
#: cells that one frame tells, because the page does nothing else while it takes a frame
CELLS_MAX = 250
#: granularity of the memory of kernels, so that the list does not change all the time
_MEMORY_STEP = 1024**2


class OpenFrame(Body):
    """Show the cells of a session, and no longer those of another one."""

    open: str | None = Field(max_length=64)


class SeeFrame(Body):
    """The cells that are in view now, whose outputs are to be sent."""

    see: Annotated[list[int], Field(max_length=SEEN_MAX)]
    session: str = Field(max_length=64, description="id of the session that the page shows")


def _first_line(code: str) -> str:
    return code.strip().partition("\n")[0][:120]


def _state(cell: Entry) -> str:
    if cell.ended:
        return "failed" if cell.area.failed or cell.error is not None else "done"
    return "running" if cell.started else "waiting"


class Looks:
    """The sessions that admins look at now."""

    def __init__(self) -> None:
        self._looks: Counter[SessionKey] = Counter()

    def at(self, key: SessionKey) -> bool:
        """Return whether an admin looks at a session."""
        return key in self._looks

    def begin(self, key: SessionKey) -> Callable[[], None]:
        """Count a look, and return the function that ends it."""
        self._looks[key] += 1

        def end() -> None:
            self._looks[key] -= 1
            if not self._looks[key]:
                del self._looks[key]

        return end


def listed(session: Session, looks: Looks) -> dict[str, Any]:
    """Return what the page's list shows of a session."""
    container, last = session.container, session.transcript.last
    memory = None if container is None else container.memory()
    return {
        "name": session.key.name,
        "id": session.id,
        "language": session.kernelspec.name,
        "state": session.state.value,
        "created_at": moment(session.created_at).isoformat(),
        "memory_bytes": None if memory is None else memory // _MEMORY_STEP * _MEMORY_STEP,
        "cells": session.executions,
        "last": None if last is None else {"code": _first_line(last.code), "state": _state(last)},
        "can_sleep": session.can_sleep,
        "can_debug": session.kernelspec.debugger,
        "looked_at": looks.at(session.key),
    }


def _before(notice: StateNotice | None) -> dict[str, Any] | None:
    return None if notice is None or not notice.reason else {"change": notice.change.value, "reason": notice.reason}


@dataclass(slots=True)
class _Seen:
    """A cell in view, and how far its outputs were sent."""

    place: Place
    revision: int = -1


class View:
    """What a page was told of one session."""

    def __init__(self, session: Session, looks: Looks) -> None:
        """Begin with nothing."""
        self.session = session
        #: what the page's list shows of it
        self.listed = listed(session, looks)
        #: the transcript's revision when its cells were told last, and when outputs were sent last; -1: never
        self._revision = self._sent = -1
        #: what was told of each cell that had not ended; {} of those that had
        self._told: dict[int, dict[str, Any]] = {}
        self._seen: dict[int, _Seen] = {}

    def see(self, numbers: list[int]) -> None:
        """Take the cells that are in view now. A cell that was out of view begins anew: the page has dropped it."""
        self._seen = {number: self._seen.get(number) or _Seen(Place()) for number in numbers}
        self._sent = -1

    def cells(self) -> list[dict[str, Any]]:
        """Return frames with the cells that have changed since the last call; all but the last one say `more`."""
        transcript = self.session.transcript
        running = [number for number, told in self._told.items() if told]
        if transcript.revision == self._revision and not running:
            return []
        kept, revision = transcript.kept(), transcript.revision
        changed = [number for number, cell in kept.items() if cell.revision > self._revision]
        now = {number: self._cell(kept[number]) for number in {*running, *changed} & kept.keys()}
        news = [told for number, told in sorted(now.items()) if self._told.get(number) != told]
        gone = [number for number in self._told if number not in kept]
        # Of a cell that has ended, only its number is kept: it changes no more unless its revision does.
        self._told = {number: {} if cell.ended else now[number] for number, cell in kept.items()}
        self._revision = revision
        if not news and not gone:
            return []
        told = {"type": "cells", "gone": gone, "oldest": transcript.oldest}
        parts = [news[at : at + CELLS_MAX] for at in range(0, max(1, len(news)), CELLS_MAX)]
        return [told | {"cells": part, "more": part is not parts[-1]} for part in parts]

    def _cell(self, cell: Entry) -> dict[str, Any]:
        question = None if cell.ended else self.session.question(cell)
        return {
            "number": cell.number,
            "count": cell.execution_count,
            "state": _state(cell),
            "code": cell.code[:CODE_MAX],
            "chars": len(cell.code),
            "bytes": cell.area.size,
            "omitted": cell.area.omitted,
            "undone": self.session.transcript.undone(cell),
            "before": _before(cell.before),
            "error": None if cell.error is None else {"code": cell.error.code, "message": cell.error.message},
            "question": None if question is None else asdict(question),
        }

    def outputs(self) -> Iterator[bytes]:
        """Yield frames with the further outputs of the cells in view. Between two of them, the view may change."""
        if self.session.transcript.revision == self._sent:
            return
        kept, self._sent = self.session.transcript.kept(), self.session.transcript.revision
        for number, seen in list(self._seen.items()):
            cell = kept.get(number)
            if cell is None or cell.revision == seen.revision or self._seen.get(number) is not seen:
                continue
            fresh, later, place = cell.area.since(seen.place)
            first = {"code": cell.code} if seen.revision == -1 else {}
            seen.place, seen.revision = place, cell.revision
            fields: dict[str, Any] = {"type": "outputs", "cell": number, "fresh": fresh} | first
            items: list[bytes] = []
            for output in later:
                items.append(exact_json.dumps(joined(output)))
                if sum(map(len, items)) >= FRAME:
                    yield _frame(fields, items)
                    fields, items = {"type": "outputs", "cell": number, "fresh": False}, []
            if items or fresh or first:
                yield _frame(fields, items)


def _frame(fields: dict[str, Any], outputs: list[bytes]) -> bytes:
    return b"".join(with_list(fields, "outputs", ([output] for output in outputs)))


class FeedHandler(ClientSocketHandler):
    """`/ui/feed`."""

    _looks: Looks
    #: the tenant whose sessions are told
    _of: str
    #: ends an admin's look at the opened session
    _end_look: Callable[[], None] | None = None
    _opened: SessionKey | None = None
    _view: View | None = None
    _pump: asyncio.Task[None] | None = None
    _listed: list[dict[str, Any]] | None = None
    _list_due = 0.0
    #: whether the page knows that there is no session of the name that it has opened
    _told_absent = False
    #: bytes that were sent since the last pause
    _sent = 0

    def initialize(self, gateway: Gateway, dialect: str = "none", looks: Looks | None = None) -> None:
        """Set up the handler."""
        super().initialize(gateway, dialect)
        self._looks = Looks() if looks is None else looks

    def authenticate(self) -> Caller:
        """Return the caller with the key that a subprotocol carries, or else with that of a header."""
        for offered in self.request.headers.get("Sec-WebSocket-Protocol", "").split(","):
            if (name := offered.strip()).startswith(KEY_PREFIX):
                return self.gateway.keys.caller_of(_decoded(name.removeprefix(KEY_PREFIX)))
        return super().authenticate()

    def prepare(self) -> None:
        """Check the key, and take a place among the tenant's WebSockets."""
        super().prepare()
        if self.request.method != "GET":
            return  # tornado refuses the method
        of = self.raw_argument("tenant")
        self._of = self.tenant if of is None else valid_name("tenant", of)
        if self._is_look and not (self.gateway.settings.admin_looks and self.caller.role is Role.ADMIN):
            raise Forbidden
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidRequest("this path speaks WebSocket only", field="Upgrade")
        if self._is_look:
            self.gateway.audit.look(self._of, "", self.asker)
        self.take_place(SessionKey(self.tenant, PAGES))

    @property
    def _is_look(self) -> bool:
        """Whether an admin looks at the sessions of another tenant."""
        return self._of != self.tenant

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Accept the page's subprotocol, and never the one with the key."""
        return PROTOCOL if PROTOCOL in subprotocols else None

    def open(self, *args: str, **kwargs: str) -> None:
        """Begin to look."""
        super().open(*args, **kwargs)
        self._pump = spawn(Metered(self._look_again_and_again(), self.count_time), "feed of a page")

    def on_close(self) -> None:
        """Stop to look."""
        super().on_close()
        self._stop_looking()
        if self._pump is not None:
            self._pump.cancel()

    async def received(self, message: str | bytes) -> None:
        """Take what the page shows now."""
        try:
            frame = exact_json.loads(message)
            if not isinstance(frame, dict):
                raise InvalidRequest("the frame is no JSON object")
            self._take(frame)
        except orjson.JSONDecodeError:
            await self._send({"type": "error", "error": InvalidRequest("the frame is no valid JSON").as_dict()})
        except SessionError as error:
            await self._send({"type": "error", "error": error.as_dict()})

    def _take(self, frame: dict[str, Any]) -> None:
        if "see" in frame:
            seen = validated(SeeFrame, frame)
            if self._view is not None and self._view.session.id == seen.session:  # else the page learns of the new one
                self._view.see(seen.see)
            return
        name = validated(OpenFrame, frame).open
        opened = None if name is None else SessionKey(self._of, name)
        self._stop_looking()
        self._view = self._opened = None
        if self._is_look and opened is not None:
            self.gateway.audit.look(opened.tenant, opened.name, self.asker)
            self._end_look = self._looks.begin(opened)
        self._opened, self._told_absent = opened, False

    def _stop_looking(self) -> None:
        if self._end_look is not None:
            self._end_look()
            self._end_look = None

    # -- looking ----------------------------------------------------------------------------------------------

    async def _look_again_and_again(self) -> None:
        with suppress(WebSocketClosedError, StreamClosedError):
            while self.ws_connection is not None:
                if isinstance(self.gateway.trouble(), ShuttingDown):
                    self.close(GOING_AWAY, "the gateway is shutting down")
                    return
                await self._look()
                pause = max(LOOK, self._sent / RATE, self.gateway.loop_time.wait(self.tenant))
                self._sent = 0
                await asyncio.sleep(pause)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._list_due:
            self._list_due = now + LIST
            found = [listed(session, self._looks) for session in self.gateway.registry.of(self._of)]
            if found != self._listed:
                self._listed = found
                await self._send({"type": "sessions", "sessions": found})
        if self._opened is not None:
            await self._look_at(self._opened)

    async def _look_at(self, key: SessionKey) -> None:
        session = self.gateway.registry.find(key)
        if session is None:
            self._view = None
            if not self._told_absent:
                self._told_absent = True
                await self._send({"type": "absent", "name": key.name})
            return
        if self._view is None or self._view.session is not session:
            self._told_absent = False
            self._view = View(session, self._looks)
            await self._send({"type": "opened", "session": self._view.listed})
        if self._view is not None:  # else the page has opened another session meanwhile
            await self._tell(self._view)

    async def _tell(self, view: View) -> None:
        if (now := listed(view.session, self._looks)) != view.listed:
            view.listed = now
            await self._send({"type": "session", "session": now})
        for cells in view.cells():
            await self._send(cells)
        for frame in view.outputs():
            if self._view is not view:
                return
            await self._write(frame)

    async def _send(self, frame: dict[str, Any]) -> None:
        await self._write(exact_json.dumps(frame))

    async def _write(self, frame: bytes) -> None:
        """Send a frame, and wait while the page reads slowly."""
        self._sent += len(frame)
        await self.write_message(frame)


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError:  # no base64, or no ASCII
        raise Unauthorized from None


def routes(gateway: Gateway) -> list[Route]:
    """Return the route of the feed."""
    return [("/ui/feed", FeedHandler, {"gateway": gateway, "looks": Looks()})]
