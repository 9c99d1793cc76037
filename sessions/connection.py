"""One kernel's channels: sign and send, receive and verify, match replies to requests.

It knows sockets and messages, not cells or sessions. What arrives is handed on in order, as it arrives, to
`on_message`. The kernel is hostile: a message's size is bounded before it is buffered, what is malformed is
counted and dropped, and one kernel's flood takes turns with the rest of the event loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson
import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from sessions.backlog import Backlog
from sessions.errors import ConnectionFailed
from sessions.flush import Flush, Line
from sessions.messages import Codec, MalformedMessage, Message
from sessions.models import ConnectionInfo
from sessions.vigil import Vigil

log = structlog.get_logger()

CHANNELS = ("shell", "control", "stdin", "iopub")
#: messages that one turn of the event loop takes from one socket, and their bytes
BATCH_MESSAGES = 64
BATCH_BYTES = 1024**2
#: bytes per channel that may wait for a kernel that does not read
UNSENT_MAX = 64 * 1024**2
#: messages libzmq may hold for us; beyond that TCP pushes back on the kernel, whose iopub waits (XPUB_NODROP)
RECEIVE_QUEUE = 8
#: seconds between the end of a channel's connection and its renewal
RENEWAL_DELAY = 0.1
#: seconds a kernel may be silent before its host's TCP asks whether it is there, between two such questions, and how
#: many go unanswered. The system asks, not the gateway: one that stands still itself takes no kernel for dead.
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 4, zmq.TCP_KEEPALIVE_INTVL: 2, zmq.TCP_KEEPALIVE_CNT: 4}
#: type of the messages that a kernel's prelude publishes for its own ears
SETTLED = "settled"
#: ms for a connection to be made before it is tried anew
CONNECT_TIMEOUT = 3000
#: a kernel that has sent so many malformed messages is not worth listening to
MALFORMED_MAX = 1000
#: nor one that so often in a row hangs up before it has said anything
DROPS_MAX = 50
#: milliseconds between two attempts to connect
RECONNECT = 25
#: seconds between kernel_info requests while a kernel starts, which keeps the first for when it has; and when it has
#: answered, but its output did not reach us yet
READY_RETRY = 0.25
AUDIBLE_RETRY = 0.02


def ignore(_message: Message) -> None:
    """The listener of a connection that nobody uses yet."""


@functools.cache
def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """Libzmq's context, for as many sockets as it can have: a kernel takes twelve, and 1,023 are the default."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
    return context


class Connection:
    """The open channels of one running kernel."""

    def __init__(self, info: ConnectionInfo, *, max_message_bytes: int, flush: str = "", prelude: str = "") -> None:
        """Open the channels; they connect as soon as the kernel binds.

        Args:
            info: where the kernel listens or will listen.
            max_message_bytes: a larger frame is refused and costs its sender the connection, which is then renewed.
            flush: the kernelspec's, for a kernel that says `idle` too early.
            prelude: the kernelspec's: what the kernel runs first. Nobody hears what comes of it.

        Raises:
            ConnectionFailed: there are no sockets left.
        """
        self.on_message: Callable[[Message], None] = ignore
        #: called when something that the kernel sent on shell was lost
        self.on_loss: Callable[[], None] = lambda: None
        #: called when the kernel sends nothing but garbage, or a message without end
        self.on_broken: Callable[[], None] = lambda: None
        #: called when the kernel was connected and cannot be reached any more
        self.on_away: Callable[[], None] = lambda: None
        self._codec = Codec(info.key, info.signature)
        self._info = info
        self._loop = asyncio.get_running_loop()
        self._max_message_bytes = max_message_bytes
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._probes: set[_Probe] = set()
        self._flush = Flush(Line(lambda: self._ask(flush), self._send_later, self._deliver)) if flush else None
        self._malformed = 0
        #: how often each channel was dropped since something came of it
        self._drops = dict.fromkeys(CHANNELS, 0)
        self._paused = False
        self._closed = False
        self._client_keys = zmq.curve_keypair() if info.curve_publickey else None
        self._backlogs = {channel: Backlog(*info.endpoint(channel)) for channel in CHANNELS if info.transport == "tcp"}
        self._vigil = Vigil(self._backlogs, 2 * max_message_bytes, self._drains, self._broken, self._gone)
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        #: channels that are to be read
        self._draining: set[str] = set()
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        try:
            for channel in CHANNELS:
                self._open(channel)
        except zmq.ZMQError as error:
            self.close()
            raise ConnectionFailed(f"the gateway could not open a connection: {error.strerror}") from error
        self._prelude = self._ask(prelude) if prelude else None

    def _open(self, channel: str) -> None:
        socket: zmq.Socket[bytes] = _context().socket(zmq.SUB if channel == "iopub" else zmq.DEALER)
        self._sockets[channel] = socket
        socket.linger = 0
        socket.maxmsgsize = self._max_message_bytes
        socket.rcvhwm = RECEIVE_QUEUE
        # We connect before the kernel binds: to try again ever less often would add a sixth to its start.
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT, 0
        socket.connect_timeout = CONNECT_TIMEOUT
        if channel == "iopub":
            socket.subscribe(b"")
            for option, value in KEEPALIVE.items():  # here is nothing on its way from us that would keep it from asking
                socket.setsockopt(option, value)
        else:
            socket.identity = b"gateway"  # replies on stdin go to the identity that asked on shell
        if self._info.curve_publickey and self._client_keys:
            socket.curve_serverkey = self._info.curve_publickey
            socket.curve_publickey, socket.curve_secretkey = self._client_keys
        self._watch(channel)
        socket.connect(self._info.url(channel))
        self._loop.add_reader(socket.FD, self._on_readable, channel)
        # A pipe signals only once it was found empty: what comes before that would lie there unseen.
        self._drain_soon(channel)

    def _watch(self, channel: str) -> None:
        """Hear of what happens to a channel's connection; before there is one, or its beginning is missed."""
        monitor = self._monitors[channel] = self._sockets[channel].get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
        )
        self._loop.add_reader(monitor.FD, self._on_event, channel, monitor)
        self._loop.call_soon(self._on_event, channel, monitor)  # as in `_open`

    def _on_event(self, channel: str, monitor: zmq.Socket[bytes]) -> None:
        dropped = False
        while not self._closed and monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            if event["event"] == zmq.EVENT_DISCONNECTED:
                dropped = True
                self._vigil.lost(channel)
                continue
            self._vigil.back(channel)
            if channel in self._backlogs:
                self._backlogs[channel].connected(event["value"])
        if dropped:
            # Not at once: libzmq tells of the end before it hands over what came last.
            self._loop.call_later(RENEWAL_DELAY, self._reconnect, channel)

    def _reconnect(self, channel: str) -> None:
        """Renew a channel that libzmq dropped: after an oversized frame it would never connect again."""
        if self._closed:
            return
        self._drops[channel] += 1
        if self._drops[channel] == DROPS_MAX:
            self.on_broken()
        if self._drops[channel] >= DROPS_MAX:
            return
        log.warning("kernel channel dropped, connecting again", channel=channel)
        socket, url = self._sockets[channel], self._info.url(channel)
        socket.disconnect(url)
        socket.connect(url)
        self._drain_soon(channel)  # a new pipe, as above
        if channel == "shell":
            self.on_loss()
        elif channel == "iopub" and self._flush is not None:
            self._flush.output_lost()

    def _broken(self) -> None:
        self.on_broken()

    def _gone(self) -> None:
        self.on_away()

    def _drains(self, channel: str) -> bool:
        """Whether there are whole messages; then they are read, because asking swallows their edge."""
        if not self._sockets[channel].poll(0):
            return False
        self._drain_soon(channel)
        return True

    def _on_readable(self, channel: str) -> None:
        # At once: another turn of the loop would cost every small message a look at all descriptors.
        if channel not in self._draining:
            self._drain(channel)

    def _drain_soon(self, channel: str) -> None:
        # Only once: each one that finds more than a batch comes back, and many of them leave no turn to others.
        if channel not in self._draining:
            self._draining.add(channel)
            self._loop.call_soon(self._drain, channel)

    def pause(self) -> None:
        """Read no more of the kernel's output for now: it waits, and loses nothing."""
        self._paused = True

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            self._drain_soon("iopub")

    def _drain(self, channel: str) -> None:
        self._draining.discard(channel)
        if channel == "iopub" and self._paused:
            return
        # The descriptor signals edges, not levels: read until there is nothing, or come back by ourselves.
        size = 0
        for _ in range(BATCH_MESSAGES):
            if self._closed or size > BATCH_BYTES or (channel == "iopub" and self._paused):
                break
            try:
                frames = self._sockets[channel].recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            size += sum(map(len, frames))
            if channel in self._backlogs:
                self._backlogs[channel].took(frames)
            self._receive(channel, frames)
        if not self._closed:
            self._drain_soon(channel)

    def _receive(self, channel: str, frames: list[bytes]) -> None:
        try:
            message = self._codec.parse(channel, frames)
        except MalformedMessage as error:
            self._reject(channel, str(error))
            return
        self._drops[channel] = 0
        if message.type == SETTLED or message.parent_id == self._prelude:
            return
        if self._flush is not None and channel in {"shell", "iopub"}:
            self._flush.feed(message)
        else:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        channel = message.channel
        reply = self._replies.pop(message.parent_id, None) if channel in {"shell", "control"} else None
        if reply is not None and not reply.done():
            reply.set_result(message)
        for probe in self._probes:
            probe.feed(message)
        try:
            self.on_message(message)
        except Exception as error:
            # One of the few broad ones: whatever a message does to who reads it, the next one must be read.
            log.exception("a message could not be handled", channel=channel, type=message.type[:64])
            self._reject(channel, str(error))

    def _reject(self, channel: str, reason: str) -> None:
        self._malformed += 1
        log.debug("malformed message dropped", channel=channel, reason=reason)
        if self._malformed == MALFORMED_MAX:
            self.on_broken()

    def send(self, channel: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None) -> str:
        """Send one message.

        Returns:
            its id, which its replies and outputs name as their parent.

        Raises:
            ConnectionFailed: the connection is closed, or the kernel has taken nothing for too long.
        """
        if self._closed:
            raise ConnectionFailed
        msg_id, frames = self._codec.request(msg_type, content, parent)
        self._send_in_turn(channel, msg_type, frames)
        return msg_id

    def forward(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Sign and send what a client has built: header, parent header, metadata, content; then buffers.

        Raises:
            ConnectionFailed: as `send` does.
        """
        if self._closed:
            raise ConnectionFailed
        frames = self._codec.sign(parts, buffers)
        self._send_in_turn(channel, orjson.loads(parts[0])["msg_type"] if self._flush else "", frames)

    def _send_in_turn(self, channel: str, msg_type: str, frames: list[bytes]) -> None:
        if self._flush is None or channel != "shell":
            self._send(channel, frames)
        elif self._flush.admits(msg_type, frames):
            try:
                self._send(channel, frames)
            except ConnectionFailed:
                self._flush.not_sent()
                raise

    def _send_later(self, frames: list[bytes]) -> None:
        with suppress(ConnectionFailed):  # a kernel that takes nothing, whose cell has a deadline
            self._send("shell", frames)

    def _ask(self, code: str) -> str:
        content = {"code": code, "silent": True, "store_history": False, "allow_stdin": False}
        msg_id, frames = self._codec.request("execute_request", content)
        self._send_later(frames)
        return msg_id

    def _send(self, channel: str, frames: list[bytes]) -> None:
        backlog = self._backlogs.get(channel)
        if backlog is not None and backlog.full(UNSENT_MAX):
            raise ConnectionFailed("the kernel takes no more messages")
        try:
            self._sockets[channel].send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionFailed("the kernel takes no more messages") from None
        if backlog is not None:
            backlog.sent(frames)
        # Sending can swallow the edge of a message that came in meanwhile.
        self._drain_soon(channel)

    async def request(self, channel: str, msg_type: str, content: dict[str, Any]) -> Message:
        """Send one message and wait for its reply. Cancel it to give up.

        Raises:
            ConnectionFailed: the connection was closed meanwhile.
        """
        msg_id = self.send(channel, msg_type, content)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._replies[msg_id] = future
        try:
            return await future
        finally:
            self._replies.pop(msg_id, None)

    async def ready(self) -> None:
        """Wait until the kernel answers on shell *and* its iopub reaches us. Cancel it to give up.

        Both channels keep their order: all that the kernel has sent before is in by then, or will never be. A
        subscription may arrive later than the first request, so the request is repeated until both are seen.

        Raises:
            ConnectionFailed: the connection was closed meanwhile.
        """
        probe = _Probe()
        self._probes.add(probe)
        try:
            while not self._closed and not probe.passed.is_set():
                with suppress(ConnectionFailed):  # a channel that is being renewed takes nothing: it is asked again
                    probe.sent.add(self.send("shell", "kernel_info_request", {}))
                with suppress(TimeoutError):
                    async with asyncio.timeout(READY_RETRY):
                        await probe.replied.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(AUDIBLE_RETRY):
                        await probe.passed.wait()
        finally:
            self._probes.discard(probe)
        if self._closed:
            raise ConnectionFailed

    def close(self) -> None:
        """Close all channels; idempotent. Requests under way fail with ConnectionFailed."""
        if self._closed:
            return
        self._closed = True
        self._vigil.close()
        if self._flush is not None:
            self._flush.close()
        for monitor in self._monitors.values():
            self._loop.remove_reader(monitor.FD)
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.disable_monitor()  # first: libzmq's thread would wait for ever to tell of its end to nobody
            socket.close()
        for monitor in self._monitors.values():
            monitor.close()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(ConnectionFailed())
        for probe in self._probes:
            probe.replied.set()
            probe.passed.set()
        # No ring of references: what a session has shown is freed with it, not whenever rings are looked for.
        self.on_message = ignore
        self.on_loss = self.on_broken = self.on_away = lambda: None


class _Probe:
    """Requests that nobody asked for, and what has come back of them."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        #: it has answered; and its iopub reaches us, too
        self.replied, self.passed = asyncio.Event(), asyncio.Event()
        self._replied: set[str] = set()
        self._idle: set[str] = set()

    def feed(self, message: Message) -> None:
        """Take in a message of the kernel."""
        if message.parent_id not in self.sent:
            return
        if message.channel == "shell":
            self._replied.add(message.parent_id)
            self.replied.set()
        elif message.channel == "iopub" and message.content.get("execution_state") == "idle":
            self._idle.add(message.parent_id)
        if self._replied & self._idle:
            self.passed.set()
