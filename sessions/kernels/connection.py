"""One kernel's channels: sign and send messages, verify received ones, match replies to requests.

Layers, from the kernel up: transport (sockets) → codec (signatures, JSON) → idle barrier, only for kernelspecs with a
`flush` → replies and probes → the listener. This module knows no cells and no sessions. The kernel is hostile: a
malformed message is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from kernel_image.protocol import SETTLED
from sessions.kernels.idle_barrier import IdleBarrier, Line
from sessions.kernels.messages import Codec, MalformedMessage, Message
from sessions.kernels.replies import Replies
from sessions.kernels.transport import Transport
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.tenants.traffic import NOBODY, Charge

log = structlog.get_logger()

#: malformed messages after which a kernel is broken
MALFORMED_MAX = 1000


class ConnectionListener(Protocol):
    """Gets the events of one connection, in order."""

    def on_message(self, message: Message) -> None:
        """Take a valid message of the kernel."""

    def on_shell_loss(self) -> None:
        """A message that the kernel sent on shell may be lost."""

    def on_broken(self) -> None:
        """The kernel sends only garbage, or a message without end."""

    def on_unreachable(self) -> None:
        """The kernel was connected, and can no longer be reached."""


class Connection:
    """The channels of one running kernel."""

    def __init__(
        self,
        info: ConnectionInfo,
        listener: ConnectionListener,
        *,
        max_message_bytes: int,
        flush: str = "",
        prelude: str = "",
        before_send: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the channels; `open` opens them.

        Args:
            info: where the kernel listens or will listen.
            listener: gets the events of the connection.
            max_message_bytes: a larger frame is refused and costs the kernel the connection, which is then renewed.
            flush: `KernelSpec.flush`, for a kernel whose `idle` comes too early.
            prelude: `KernelSpec.prelude`, which the kernel runs first. Its messages are dropped.
            before_send: called before each message to the kernel.
        """
        self._listener = listener
        self._codec = Codec(info.key, info.signature)
        self._charge = NOBODY
        self._make_transport = partial(Transport, info, self, max_message_bytes, lambda: self._charge)
        self._transport = self._make_transport()
        self._before_send = before_send
        self._replies = Replies()
        self._idle_barrier = (
            IdleBarrier(Line(lambda: self._ask(flush), self._send_later, self._deliver)) if flush else None
        )
        self._malformed = 0
        self._prelude = prelude
        #: message id of the prelude's request
        self._prelude_id: str | None = None

    def open(self) -> None:
        """Open the channels, perhaps again after `suspend`; they connect as soon as the kernel binds.

        Raises:
            ConnectionFailed: when there are no sockets left.
        """
        if self._transport.closed:
            self._transport = self._make_transport()
        self._transport.open()
        if self._prelude:
            self._prelude_id = self._ask(self._prelude)

    def suspend(self) -> None:
        """Close the channels with a reset; `open` opens them again. No message may be under way."""
        self._transport.close(reset=True)

    def charge(self, charge: Charge) -> None:
        """Charge a tenant from now on, because it has the kernel."""
        self._charge = charge

    def pause(self) -> None:
        """Stop reading the kernel's output: the kernel waits, and no output is lost."""
        self._transport.pause()

    def resume(self) -> None:
        """Read the kernel's output again."""
        self._transport.resume()

    # -- what the transport reports -------------------------------------------------------------------------

    def on_frames(self, channel: str, frames: list[bytes]) -> None:
        """Verify a message of the kernel and deliver it."""
        try:
            message = self._codec.parse(channel, frames)
        except MalformedMessage as error:
            self._reject(channel, str(error))
            return
        self._transport.confirm(channel)
        if message.type == SETTLED or message.parent_id == self._prelude_id:
            return
        if self._idle_barrier is not None and channel in {"shell", "iopub"}:
            self._idle_barrier.pass_on(message)
        else:
            self._deliver(message)

    def on_renewed(self, channel: str) -> None:
        """Report what may be lost with the connection of a channel."""
        if channel == "shell":
            self._listener.on_shell_loss()
        elif channel == "iopub" and self._idle_barrier is not None:
            self._idle_barrier.output_lost()

    def on_broken(self) -> None:
        """Report that the kernel is broken."""
        self._listener.on_broken()

    def on_unreachable(self) -> None:
        """Report that the kernel cannot be reached."""
        self._listener.on_unreachable()

    def _deliver(self, message: Message) -> None:
        self._replies.observe(message)
        try:
            self._listener.on_message(message)
        except Exception as error:
            # One of the few broad handlers: the next message must be read after any error that this one causes.
            log.exception("a message could not be handled", channel=message.channel, type=message.type[:64])
            self._reject(message.channel, str(error))

    def _reject(self, channel: str, reason: str) -> None:
        self._malformed += 1
        log.debug("malformed message dropped", channel=channel, reason=reason)
        if self._malformed == MALFORMED_MAX:
            self._listener.on_broken()

    # -- sending --------------------------------------------------------------------------------------------

    def send(self, channel: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None) -> str:
        """Build, sign and send one message.

        Returns:
            the message's id, which its replies and outputs name as their parent.

        Raises:
            ConnectionFailed: when the connection is closed, or too many bytes wait because the kernel does not read.
        """
        if self._transport.closed:
            raise ConnectionFailed
        msg_id, frames = self._codec.request(msg_type, content, parent)
        self._send_in_turn(channel, msg_type, frames)
        return msg_id

    def forward(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Sign and send a message that a channel client has built.

        Args:
            channel: where to send it.
            parts: header, parent header, metadata and content, each as JSON.
            buffers: the frames after them.

        Raises:
            ConnectionFailed: as in `send`.
        """
        if self._transport.closed:
            raise ConnectionFailed
        frames = self._codec.sign(parts, buffers)
        self._send_in_turn(channel, orjson.loads(parts[0])["msg_type"] if self._idle_barrier else "", frames)

    def _send_in_turn(self, channel: str, msg_type: str, frames: list[bytes]) -> None:
        self._before_send()
        if self._idle_barrier is None or channel != "shell":
            self._transport.send(channel, frames)
        elif self._idle_barrier.admits(msg_type, frames):
            try:
                self._transport.send(channel, frames)
            except ConnectionFailed:
                self._idle_barrier.not_sent()
                raise

    def _send_later(self, frames: list[bytes]) -> None:
        self._before_send()
        with suppress(ConnectionFailed):  # the kernel accepts no messages; the cell ends at its deadline
            self._transport.send("shell", frames)

    def _ask(self, code: str) -> str:
        content = {"code": code, "silent": True, "store_history": False, "allow_stdin": False}
        msg_id, frames = self._codec.request("execute_request", content)
        self._send_later(frames)
        return msg_id

    async def request(self, channel: str, msg_type: str, content: dict[str, Any]) -> Message:
        """Send one message and wait for its reply, without a time limit.

        Raises:
            ConnectionFailed: when the connection was closed meanwhile.
        """
        return await self._replies.reply_to(self.send(channel, msg_type, content))

    async def ready(self) -> None:
        """Wait until the kernel answers on shell *and* its iopub and stdin reach the gateway, without a time limit.

        Both channels keep their order: all earlier messages of the kernel have arrived by then, or never will. The
        kernel may get the subscription after the first request, so the request is repeated until both are seen.

        Raises:
            ConnectionFailed: when the connection was closed meanwhile.
        """
        with self._replies.probe() as probe:
            await probe.ask(lambda: self.send("shell", "kernel_info_request", {}), lambda: self._transport.closed)
        await self._transport.connected.wait()
        if self._transport.closed:
            raise ConnectionFailed

    def expect_end(self) -> None:
        """Take the loss of channels for granted from now on, because the gateway ends the kernel."""
        self._transport.ending = True

    def close(self) -> None:
        """Close all channels; idempotent. Requests under way fail with ConnectionFailed."""
        if self._transport.closed:
            return
        self._transport.close()
        if self._idle_barrier is not None:
            self._idle_barrier.close()
        self._replies.fail()
