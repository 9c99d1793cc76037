"""A relay: one program in a container, which carries many connections; see `kernel_image/relaying.py`.

The program runs beside user code, as its user, so its frames are not trusted: a relay that says what it must not say is
ended with all its connections. Of each connection the gateway keeps at most `RELAY_WINDOW` bytes that nobody has read,
and one piece that the program has not taken, whatever the program says. What closed connections have left there is
limited for all of them together.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from kernel_image.protocol import RELAY_PIECE, RELAY_WINDOW, RelayFrame, relay_frame, take_relay_frames
from sessions.model.errors import ConnectionFailed, SessionError
from sessions.model.tasks import spawn
from sessions.tenants.traffic import NO_CHARGE, Charge

#: bytes that a reader has taken before the other end may send as many more
BATCH = RELAY_WINDOW // 4
#: what a client learns of a program that says what it must not say
NOT_VALID = "the sandbox gave no valid answer"
#: what a client learns of a program that does not take its input
TAKES_NOTHING = "the sandbox takes nothing that is sent to it"
#: closed connections whose last pieces may wait for a program: user code may have stopped it
CLOSED_MAX = 128
#: bytes that a frame which waits takes besides its content
FRAME_COST = 128
#: reads in a row without a frame for a connection, after which the next read waits for so many seconds: a program may
#: send such frames without end
USELESS_MAX, USELESS_PAUSE = 8, 0.02
_NUMBER = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Words:
    """The errors of a relay that clients get."""

    #: the error for a container that lacks the program, and for a connection that the program refuses
    missing: Callable[[], Exception]
    refused: Callable[[], SessionError]
    #: why a connection failed, when the program has ended, and when the other end has broken the connection
    ended: str
    broken: str


class RelayConnection:
    """One connection. The caller closes it."""

    def __init__(self, relay: Relay, number: int) -> None:
        """Do nothing yet; see `Relay.begin`."""
        self._relay = relay
        self._number = number
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: Exception | None = None
        #: what the other end has sent and nobody has read: as one, because its pieces may be of one byte each
        self._arrived = bytearray()
        #: bytes that the other end may send; bytes that were taken since it was last told
        self._granted = RELAY_WINDOW
        self._taken = 0
        self._ended = False
        #: bytes that may be sent to the other end, and whether a piece waits for the program
        self._credit = RELAY_WINDOW
        self._waits = False
        self._changed = asyncio.Event()

    # -- for its user ---------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """Return the next piece that the other end has sent. An empty piece means that it sends no more.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        while not self._arrived:
            if self._ended:
                return b""
            await self._change()
        piece = bytes(self._arrived[:RELAY_PIECE])
        del self._arrived[:RELAY_PIECE]
        self._taken += len(piece)
        if self._taken >= BATCH and not self._ended:
            self._relay.say(RelayFrame.MORE, self._number, _NUMBER.pack(self._taken))
            self._granted += self._taken
            self._taken = 0
        return piece

    async def write(self, content: bytes) -> None:
        """Send data to the other end. The caller waits while it takes none, or the program takes no input.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        rest = memoryview(content)
        while rest:
            while self._waits or not self._credit:
                await self._change()
            self._raise_failure()
            piece = rest[: min(RELAY_PIECE, self._credit)]
            self._credit -= len(piece)
            self._waits = True
            self._relay.say(RelayFrame.DATA, self._number, bytes(piece))
            rest = rest[len(piece) :]

    def end(self) -> None:
        """Tell the other end that no more data follow."""
        if self._failure is None:
            self._relay.say(RelayFrame.END, self._number)

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._failure is None:
            self._relay.say(RelayFrame.BROKEN, self._number)
            self.fail(ConnectionFailed("the connection was closed"))
            self._relay.forget(self._number)

    async def _change(self) -> None:
        self._raise_failure()
        self._changed.clear()
        await self._changed.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- for its relay --------------------------------------------------------------------------------------

    def fail(self, failure: Exception) -> None:
        """Report that the connection is broken, or could not be opened."""
        self._failure = failure
        if not self.opened.done():
            self.opened.set_exception(failure)
            self.opened.exception()  # nobody may wait for it any more
        self._changed.set()

    def passed_on(self) -> None:
        """Let the user write the next piece, because the one that waited goes to the program now."""
        self._waits = False
        self._changed.set()

    def take(self, kind: RelayFrame, content: bytes) -> bool:
        """Take a frame of the program. Return False if the program must not send it."""
        if (kind == RelayFrame.OPENED) == self.opened.done():
            return False
        if kind == RelayFrame.OPENED:
            self.opened.set_result(None)
        elif kind == RelayFrame.DATA and content and not self._ended:
            self._granted -= len(content)
            self._arrived += content
        elif kind == RelayFrame.END and not self._ended:
            self._ended = True
        elif kind == RelayFrame.MORE and len(content) == _NUMBER.size:
            self._credit += _NUMBER.unpack(content)[0]
        else:
            return False
        self._changed.set()
        return self._granted >= 0 and self._credit <= RELAY_WINDOW


class Relay:
    """The program in one container, and its connections."""

    def __init__(
        self,
        program: Callable[[AsyncIterator[bytes]], AsyncGenerator[bytes, None]],
        words: Words,
        *,
        linger: float,
        charge: Charge = NO_CHARGE,
    ) -> None:
        """Start the program.

        Args:
            program: runs the program with an input, and yields its output.
            words: errors that clients get.
            linger: seconds for which a relay without connections waits for the next one.
            charge: what the container's tenant is charged with for the program's frames.
        """
        self._program = program
        self._words = words
        self._charge = charge
        self._linger = linger
        #: kind, number and content of each frame that waits for the program, and what all of them take
        self._frames: asyncio.Queue[tuple[RelayFrame, int, bytes]] = asyncio.Queue()
        self._waiting = 0
        #: why connections break when the program ends
        self._cause: Exception = ConnectionFailed(words.ended)
        self._connections: dict[int, RelayConnection] = {}
        self._last = 0
        self._heard = False
        self._idle: asyncio.TimerHandle | None = None
        self._work = spawn(self._run(), "relay")
        self._wait_for_use()

    @property
    def leaving(self) -> bool:
        """Whether the program has ended, or ends."""
        return self._work.done() or self._work.cancelling() > 0

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` once when the program has ended."""
        self._work.add_done_callback(lambda _: tell())

    def leave(self) -> None:
        """Begin to end the program. All its connections break. Idempotent."""
        if not self.leaving:
            self._work.cancel()

    async def ended(self) -> None:
        """Wait until the program's output has ended."""
        await asyncio.wait({self._work})

    def begin(self, to: bytes) -> RelayConnection:
        """Begin to open a connection. The caller closes it, also if `opened` fails.

        Args:
            to: what the program connects to.

        Returns:
            a connection to which data can be sent at once. `opened` raises `words.refused` or `words.missing`, or
            ConnectionFailed when the container has ended.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._last += 1
        connection = self._connections[self._last] = RelayConnection(self, self._last)
        self.say(RelayFrame.OPEN, self._last, to)
        return connection

    def say(self, kind: RelayFrame, number: int, content: bytes = b"") -> None:
        """Send a frame to the program. The program is ended if too many wait, as those of closed connections may."""
        self._frames.put_nowait((kind, number, content))
        self._waiting += len(content) + FRAME_COST
        if self._waiting > RELAY_PIECE * (len(self._connections) + CLOSED_MAX) and not self.leaving:
            self._cause = ConnectionFailed(TAKES_NOTHING)
            self.leave()

    def forget(self, number: int) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(number, None)
        self._wait_for_use()

    def _wait_for_use(self) -> None:
        if not self._connections and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(self._linger, self.leave)

    async def _run(self) -> None:
        try:
            async with aclosing(self._program(self._input())) as output:
                buffer, useless = bytearray(), 0
                async for piece in output:
                    began = time.perf_counter()
                    buffer += piece
                    useless = useless + 1 if self._take_frames(buffer) else 0
                    self._charge.spend(time.perf_counter() - began)
                    await asyncio.sleep(max(self._charge.wait(), USELESS_PAUSE if useless > USELESS_MAX else 0.0))
            if not self._heard:
                self._cause = self._words.missing()
        except SessionError as error:
            self._cause = error
        finally:
            if self._idle is not None:
                self._idle.cancel()
            for connection in self._connections.values():
                connection.fail(self._cause)
            self._connections.clear()

    async def _input(self) -> AsyncIterator[bytes]:
        while True:
            kind, number, content = await self._frames.get()
            self._waiting -= len(content) + FRAME_COST
            if kind == RelayFrame.DATA and number in self._connections:
                self._connections[number].passed_on()
            yield relay_frame(kind, number, content)

    def _take_frames(self, buffer: bytearray) -> bool:
        """Take all whole frames out of the buffer.

        Returns:
            whether there were some, and none of them was for a connection.

        Raises:
            ConnectionFailed: when the program says what it must not say.
        """
        useful: list[bool] = []
        try:
            for kind, number, content in take_relay_frames(buffer):
                self._heard = True
                useful.append(number in self._connections)
                if not self._take(kind, number, content):
                    raise ConnectionFailed(NOT_VALID)
        except ValueError:
            raise ConnectionFailed(NOT_VALID) from None
        return bool(useful) and not any(useful)

    def _take(self, kind: RelayFrame, number: int, content: bytes) -> bool:
        if kind == RelayFrame.ALIVE:
            return number == 0 and not content
        connection = self._connections.get(number)
        if connection is None:  # the gateway has closed it, and the program does not know yet
            return 0 < number <= self._last
        if kind in {RelayFrame.REFUSED, RelayFrame.BROKEN}:
            refused = kind == RelayFrame.REFUSED
            if content or refused == connection.opened.done():
                return False
            connection.fail(self._words.refused() if refused else ConnectionFailed(self._words.broken))
            self.forget(number)
            return True
        return connection.take(kind, content)
