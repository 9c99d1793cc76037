"""One kernel's channels: signs and sends messages, verifies received messages, matches replies to requests.

A received message passes these layers: transport (sockets) → codec (signatures, JSON) → idle barrier, only for
kernelspecs with a `flush` → replies and probes → the listener. This module knows no cells and no sessions. The kernel
may be hostile, so a malformed message is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import orjson
import structlog

from kernel_image.protocol import SETTLED
from sessions.kernels.idle_barrier import BarrierActions, IdleBarrier
from sessions.kernels.messages import Codec, MalformedMessage, Message
from sessions.kernels.replies import Replies
from sessions.kernels.transport import Transport
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.tenants.traffic import NO_CHARGE, Charge

log = structlog.get_logger()

#: malformed messages after which a kernel counts as broken
MALFORMED_MAX = 1000


class ConnectionListener(Protocol):
    """Gets the events of one connection, in order."""

    def on_message(self, message: Message) -> None:
        """Called with each valid message of the kernel."""

    def on_shell_loss(self) -> None:
        """Called when a message that the kernel sent on shell may be lost."""

    def on_broken(self) -> None:
        """Called when the kernel has sent too many malformed messages, or sends an endless one."""

    def on_unreachable(self) -> None:
        """Called when the kernel was connected, and can no longer be reached."""


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
        """Prepare the channels. `open` opens them.

        Args:
            info: addresses at which the kernel listens or will listen.
            listener: gets the events of the connection.
            max_message_bytes: maximum bytes of a frame. A larger frame ends the connection, which is then renewed.
            flush: `KernelSpec.flush`, for a kernel whose `idle` comes too early.
            prelude: `KernelSpec.prelude`, which the kernel runs first. Its messages are dropped.
            before_send: called before each message to the kernel.
        """
        self._listener = listener
        self._codec = Codec(info.key, info.signature)
        self._charge = NO_CHARGE
        self._make_transport = partial(Transport, info, self, max_message_bytes, lambda: self._charge)
        self._transport = self._make_transport()
        self._before_send = before_send
        self._replies = Replies()
        self._idle_barrier = (
            IdleBarrier(BarrierActions(lambda: self._ask(flush), self._send_later, self._deliver)) if flush else None
        )
        self._malformed = 0
        self._prelude = prelude
        #: message id of the prelude's request
        self._prelude_id: str | None = None

    def open(self) -> None:
        """Open the channels, also again after `suspend`. They connect as soon as the kernel listens.

        Raises:
            ConnectionFailed: when there are no sockets left.
        """
        if self._transport.closed:
            self._transport = self._make_transport()
        self._transport.open()
        if self._prelude:
            self._prelude_id = self._ask(self._prelude)

    def suspend(self) -> None:
        """Close the channels with a reset, until `open`. No message may be in transit."""
        self._transport.close(reset=True)

    def charge(self, charge: Charge) -> None:
        """Charge a tenant from now on, because it has the kernel."""
        self._charge = charge

    def pause(self) -> None:
        """Stop reading the kernel's output. The kernel then waits, so no output is lost."""
        self._transport.pause()

    def resume(self) -> None:
        """Read the kernel's output again."""
        self._transport.resume()

    # -- events of the transport ----------------------------------------------------------------------------

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
        """Report that messages may be lost, because a channel has lost its connection."""
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
            # All exceptions are caught, because the next message must be read whatever error this one causes.
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
            id of the message. The kernel's replies and outputs name it as their parent.

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
            channel: channel of the message.
            parts: header, parent header, metadata and content, each as JSON.
            buffers: frames after the parts.

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
        with suppress(ConnectionFailed):  # the kernel accepts no messages, so the cell ends at its deadline
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

        Messages of a channel keep their order, so by then all earlier messages of the kernel have arrived or are lost.
        The kernel may get the subscription after the first request, so the request is repeated until both have arrived.

        Raises:
            ConnectionFailed: when the connection was closed meanwhile.
        """
        with self._replies.probe() as probe:
            await probe.ask(lambda: self.send("shell", "kernel_info_request", {}), lambda: self._transport.closed)
        await self._transport.connected.wait()
        if self._transport.closed:
            raise ConnectionFailed

    def expect_end(self) -> None:
        """Do not renew lost channels from now on, because the gateway ends the kernel."""
        self._transport.expect_end()

    def close(self) -> None:
        """Close all channels. Requests that wait for a reply fail with `ConnectionFailed`. Idempotent."""
        if self._transport.closed:
            return
        self._transport.close()
        if self._idle_barrier is not None:
            self._idle_barrier.close()
        self._replies.fail()
