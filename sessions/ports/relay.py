"""The relay of one container: one tool, `kernel_image/ports.py`, which carries many connections to servers.

The tool runs beside user code, as its user, so its frames are not trusted: a relay that says what it must not say is
ended with all its connections. The gateway keeps at most `PORT_WINDOW` bytes of a connection in each direction.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import structlog

from kernel_image.protocol import PORT_PIECE, PORT_WINDOW, PORTS_TOOL, PortFrame, port_frame, take_port_frames
from sessions.guest.tools import ToolRunner
from sessions.model.errors import ConnectionFailed, PortNotOpen, PortsUnavailable, SessionError
from sessions.model.tasks import spawn
from sessions.tenants.traffic import NO_CHARGE, Charge

log = structlog.get_logger()

#: seconds for which a relay without connections waits for the next one. No kernel can sleep while its relay runs.
LINGER = 3.0
#: bytes that a reader has taken before the server may send as many more
BATCH = PORT_WINDOW // 4
#: what a client learns of a tool that says what it must not say
NOT_VALID = "the sandbox gave no valid answer"
_NUMBER = struct.Struct(">I")
_PORT = struct.Struct(">H")


class PortConnection:
    """One open connection to a server. The caller closes it."""

    def __init__(self, relay: Relay, number: int) -> None:
        """Do nothing yet; see `Relay.connect`."""
        self._relay = relay
        self._number = number
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: SessionError | None = None
        self._pieces: deque[bytes] = deque()
        #: bytes that the server may send; bytes that were taken since it was last told
        self._granted = PORT_WINDOW
        self._taken = 0
        self._ended = False
        #: bytes that may be sent to the server
        self._credit = PORT_WINDOW
        self._changed = asyncio.Event()

    # -- for its user ---------------------------------------------------------------------------------------

    async def read(self) -> bytes:
        """Return the next piece that the server has sent. An empty piece means that it sends no more.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        while not self._pieces:
            if self._ended:
                return b""
            await self._change()
        piece = self._pieces.popleft()
        self._taken += len(piece)
        if self._taken >= BATCH and not self._ended:
            self._relay.say(PortFrame.MORE, self._number, _NUMBER.pack(self._taken))
            self._granted += self._taken
            self._taken = 0
        return piece

    async def write(self, content: bytes) -> None:
        """Send data to the server. The caller waits while the server takes none.

        Raises:
            ConnectionFailed: when the connection is broken.
        """
        rest = memoryview(content)
        while rest:
            while not self._credit:
                await self._change()
            self._raise_failure()
            piece = rest[: min(PORT_PIECE, self._credit)]
            self._credit -= len(piece)
            self._relay.say(PortFrame.DATA, self._number, bytes(piece))
            rest = rest[len(piece) :]

    def end(self) -> None:
        """Tell the server that no more data follow."""
        if self._failure is None:
            self._relay.say(PortFrame.END, self._number)

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._failure is None:
            self._relay.say(PortFrame.BROKEN, self._number)
            self.fail(ConnectionFailed("the connection to the server was closed"))
            self._relay.forget(self._number)

    async def _change(self) -> None:
        self._raise_failure()
        self._changed.clear()
        await self._changed.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- for its relay --------------------------------------------------------------------------------------

    def fail(self, failure: SessionError) -> None:
        """Report that the connection is broken, or could not be opened."""
        self._failure = failure
        if not self.opened.done():
            self.opened.set_exception(failure)
            self.opened.exception()  # nobody may wait for it any more
        self._changed.set()

    def take(self, kind: PortFrame, content: bytes) -> bool:
        """Take a frame of the tool. Return False if the tool must not send it."""
        if (kind == PortFrame.OPENED) == self.opened.done():
            return False
        if kind == PortFrame.OPENED:
            self.opened.set_result(None)
        elif kind == PortFrame.DATA and content and not self._ended:
            self._granted -= len(content)
            self._pieces.append(content)
        elif kind == PortFrame.END and not self._ended:
            self._ended = True
        elif kind == PortFrame.MORE and len(content) == _NUMBER.size:
            self._credit += _NUMBER.unpack(content)[0]
        else:
            return False
        self._changed.set()
        return self._granted >= 0 and self._credit <= PORT_WINDOW


class Relay:
    """The tool in one container, and its connections."""

    def __init__(self, container: ToolRunner, charge: Charge = NO_CHARGE, linger: float = LINGER) -> None:
        """Start the tool.

        Args:
            container: the container.
            charge: what the container's tenant is charged with for the tool's frames.
            linger: seconds for which a relay without connections waits for the next one.
        """
        self._container = container
        self._charge = charge
        self._linger = linger
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._connections: dict[int, PortConnection] = {}
        self._last = 0
        self._heard = False
        self._idle: asyncio.TimerHandle | None = None
        self._work = spawn(self._run(), "relay to ports")
        self._wait_for_use()

    @property
    def ended(self) -> bool:
        """Whether the tool has ended, or ends."""
        return self._work.done() or self._work.cancelling() > 0

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Call `tell` once when the tool has ended."""
        self._work.add_done_callback(lambda _: tell())

    def end(self) -> None:
        """End the tool. All its connections break."""
        self._work.cancel()

    async def connect(self, port: int) -> PortConnection:
        """Connect to a port of the container's loopback address.

        Raises:
            PortNotOpen: when nothing listens there.
            PortsUnavailable: when the container's image has no such tool.
            ConnectionFailed: when the container has ended.
        """
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._last += 1
        number = self._last
        connection = self._connections[number] = PortConnection(self, number)
        self.say(PortFrame.OPEN, number, _PORT.pack(port))
        try:
            await connection.opened
        except BaseException:
            connection.close()
            raise
        return connection

    def say(self, kind: PortFrame, number: int, content: bytes = b"") -> None:
        """Send a frame to the tool. Each connection's window bounds the bytes that wait here."""
        self._frames.put_nowait(port_frame(kind, number, content))

    def forget(self, number: int) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(number, None)
        self._wait_for_use()

    def _wait_for_use(self) -> None:
        if not self._connections and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(self._linger, self.end)

    async def _run(self) -> None:
        cause: SessionError = ConnectionFailed("the sandbox ended while a server was used")
        try:
            async with aclosing(self._container.run_tool(PORTS_TOOL, "", self._input())) as output:
                buffer = bytearray()
                async for piece in output:
                    began = time.perf_counter()
                    buffer += piece
                    self._take_frames(buffer)
                    self._charge.spend(time.perf_counter() - began)
                    await asyncio.sleep(self._charge.wait())
            if not self._heard:
                cause = PortsUnavailable(
                    "the kernel's image is older than this gateway, and has no tool that reaches servers: build it anew"
                )
        except SessionError as error:
            cause = error
        finally:
            if self._idle is not None:
                self._idle.cancel()
            for connection in self._connections.values():
                connection.fail(cause)
            self._connections.clear()

    async def _input(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._frames.get()

    def _take_frames(self, buffer: bytearray) -> None:
        """Take all whole frames out of the buffer.

        Raises:
            ConnectionFailed: when the tool says what it must not say.
        """
        try:
            for kind, number, content in take_port_frames(buffer):
                self._heard = True
                if not self._take(kind, number, content):
                    raise ConnectionFailed(NOT_VALID)
        except ValueError:
            raise ConnectionFailed(NOT_VALID) from None

    def _take(self, kind: PortFrame, number: int, content: bytes) -> bool:
        if kind == PortFrame.ALIVE:
            return number == 0 and not content
        connection = self._connections.get(number)
        if connection is None:  # the gateway has closed it, and the tool does not know yet
            return 0 < number <= self._last
        if kind in {PortFrame.REFUSED, PortFrame.BROKEN}:
            refused = kind == PortFrame.REFUSED
            if content or refused == connection.opened.done():
                return False
            connection.fail(PortNotOpen() if refused else ConnectionFailed("the server has broken the connection"))
            self.forget(number)
            return True
        return connection.take(kind, content)
