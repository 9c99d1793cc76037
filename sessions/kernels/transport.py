"""Opens, reads, renews and pauses the ZMQ sockets of one kernel. This module does not know what messages mean.

The kernel may be hostile: libzmq refuses a frame that is too large, the watchdog finds an endless message, and sockets
are read in batches, so a kernel that sends very much does not block the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from sessions.kernels.backlog import Backlog, Unsent
from sessions.kernels.sockets import CHANNELS, Sockets, monitor_of
from sessions.kernels.watchdog import Watchdog
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.tenants.traffic import Charge

log = structlog.get_logger()

#: maximum messages, and their maximum bytes, that one turn of the event loop reads from one socket
BATCH_MESSAGES = 64
BATCH_BYTES = 1024**2
#: bytes per channel that may wait for a kernel that does not read
UNSENT_MAX = 64 * 1024**2
#: seconds between the end of a channel's connection and its renewal
RENEWAL_DELAY = 0.1
#: connections that a channel loses without a valid message between them until the kernel counts as broken
DROPS_MAX = 50


class TransportListener(Protocol):
    """Gets the events of one kernel's sockets."""

    def on_frames(self, channel: str, frames: list[bytes]) -> None:
        """Called with each complete message of a channel."""

    def on_renewed(self, channel: str) -> None:
        """Called when a channel lost its connection and connects again. Messages in transit are lost."""

    def on_broken(self) -> None:
        """Called when the kernel sends an endless message, or ends its connections again and again."""

    def on_unreachable(self) -> None:
        """Called when the kernel was connected, and can no longer be reached."""


class Transport:
    """The sockets of one kernel, one per channel."""

    def __init__(
        self,
        info: ConnectionInfo,
        listener: TransportListener,
        max_message_bytes: int,
        charge: Callable[[], Charge],
    ) -> None:
        """Prepare the sockets. `open` opens them.

        Args:
            info: addresses at which the kernel listens or will listen.
            listener: gets the events of the sockets.
            max_message_bytes: maximum bytes of a frame. A larger frame ends the connection.
            charge: returns what the kernel's tenant is charged with.
        """
        self.closed = False
        #: whether the gateway ends the kernel; then lost connections are not renewed
        self._ending = False
        #: set while all channels have done their handshake; before that, messages of the kernel on stdin are lost
        self.connected = asyncio.Event()
        self._info = info
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        #: connections that each channel has lost since its last valid message
        self._drops = dict.fromkeys(CHANNELS, 0)
        #: channels that have not done their handshake
        self._without_handshake = set(CHANNELS)
        #: lost channels that libzmq does not connect again by itself, and lost channels that were not logged yet
        self._abandoned, self._unlogged = set[str](), set[str]()
        self._paused = False
        self._maker = Sockets(info, max_message_bytes)
        self._backlogs = {channel: Backlog(*info.endpoint(channel)) for channel in CHANNELS if info.transport == "tcp"}
        self._charge = charge
        self._unsent = Unsent(self._backlogs.values(), lambda count: charge().hold(count))
        self._watchdog = Watchdog(
            self._backlogs,
            2 * max_message_bytes,
            has_messages=self._has_messages,
            on_broken=listener.on_broken,
            on_away=listener.on_unreachable,
        )
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        #: channels with a scheduled drain
        self._draining: set[str] = set()
        #: messages that were read
        self._read = 0

    # -- opening and renewing -------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the sockets. They connect as soon as the kernel listens.

        Raises:
            ConnectionFailed: when there are no sockets left.
        """
        try:
            for channel in CHANNELS:
                self._open(channel)
        except zmq.ZMQError as error:
            self.close()
            raise ConnectionFailed(f"the gateway could not open a connection: {error.strerror}") from error
        self._watchdog.start()

    def _open(self, channel: str) -> None:
        socket = self._sockets[channel] = self._maker.make(channel)
        monitor = self._monitors[channel] = monitor_of(socket)
        self._loop.add_reader(monitor.FD, self._on_event, channel, monitor)
        socket.connect(self._info.url(channel))
        self._loop.add_reader(socket.FD, self._on_readable, channel)
        # A socket's descriptor signals new messages only after the socket was found empty. So both sockets are read
        # once now, or early messages would stay unread.
        self._loop.call_soon(self._on_event, channel, monitor)
        self._drain_soon(channel)

    def _on_event(self, channel: str, monitor: zmq.Socket[bytes]) -> None:
        dropped = False
        while not self.closed and monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            match event["event"]:
                case zmq.EVENT_DISCONNECTED:
                    dropped = True
                    self._watchdog.disconnected(channel)
                    for losses in (self._without_handshake, self._abandoned, self._unlogged):
                        losses.add(channel)
                    self.connected.clear()
                case zmq.EVENT_CONNECT_RETRIED:
                    self._abandoned.discard(channel)
                case zmq.EVENT_CONNECTED:
                    self._watchdog.reconnected(channel)
                    if channel in self._backlogs:
                        self._backlogs[channel].connected(event["value"])
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._without_handshake.discard(channel)
                    if not self._without_handshake:
                        self.connected.set()
        if dropped:
            # A short delay, because libzmq reports the end of the connection before it delivers the last messages.
            self._loop.call_later(RENEWAL_DELAY, self._renew, channel)

    def _renew(self, channel: str) -> None:
        """Count a channel's loss. After a frame that was too large, libzmq does not connect again, so this does."""
        if self.closed or self._ending:
            return
        self._drops[channel] += 1
        if self._drops[channel] == DROPS_MAX:
            self._listener.on_broken()
        if self._drops[channel] >= DROPS_MAX:
            return
        if channel in self._unlogged:  # all channels of a dying kernel are lost at once, and logged in one line
            log.warning("kernel channels dropped, connecting again", channels=sorted(self._unlogged))
            self._unlogged.clear()
        if channel in self._abandoned:  # otherwise the kernel might keep the wrong one of two connections
            self._abandoned.discard(channel)
            self._sockets[channel].disconnect(self._info.url(channel))
            self._sockets[channel].connect(self._info.url(channel))
        self._drain_soon(channel)  # the connection is new, as in `_open`
        self._listener.on_renewed(channel)

    def confirm(self, channel: str) -> None:
        """Record a valid message of a channel. Connections that it lost before are no longer counted."""
        self._drops[channel] = 0

    # -- reading --------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading the kernel's output. The kernel then waits, so no output is lost."""
        self._paused = True

    def resume(self) -> None:
        """Read the kernel's output again."""
        if self._paused:
            self._paused = False
            self._drain_soon("iopub")

    def _has_messages(self, channel: str) -> bool:
        """Return whether a channel has complete messages. They are then read, because polling clears their signal."""
        if found := self._sockets[channel].poll(0) != 0:
            self._drain_soon(channel)
        return found

    def _on_readable(self, channel: str) -> None:
        # The socket is read at once: an additional turn of the event loop for each message would poll all descriptors.
        if channel not in self._draining:
            self._drain(channel)

    def _drain_soon(self, channel: str) -> None:
        # At most one drain is scheduled. After a full batch it schedules itself again, so several would block the loop.
        if channel not in self._draining:
            self._draining.add(channel)
            self._loop.call_soon(self._drain, channel)

    def _drain(self, channel: str) -> None:
        self._draining.discard(channel)
        if self.closed or (channel == "iopub" and self._paused):
            return
        charge = self._charge()
        if delay := charge.wait():
            self._draining.add(channel)
            self._loop.call_later(delay, self._drain, channel)
            return
        began, before = time.perf_counter(), self._read
        try:
            emptied = self._drain_batch(channel)
        finally:
            if self._read > before:  # a tenant whose kernels say nothing does not count as one that uses the loop
                charge.spend(time.perf_counter() - began)
        if not emptied and not self.closed:
            self._drain_soon(channel)

    def _drain_batch(self, channel: str) -> bool:
        """Read a batch of a channel's messages.

        Returns:
            whether the socket is empty. If it is not, the caller must go on: the descriptor signals edges, not levels.
        """
        size = 0
        for _ in range(BATCH_MESSAGES):
            if self.closed or size > BATCH_BYTES or (channel == "iopub" and self._paused):
                return False
            try:
                frames = self._sockets[channel].recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._read += 1
            size += sum(map(len, frames))
            if channel in self._backlogs:
                self._backlogs[channel].count_received(frames)
            self._listener.on_frames(channel, frames)
        return False

    # -- sending and closing --------------------------------------------------------------------------------

    def send(self, channel: str, frames: list[bytes]) -> None:
        """Send one message.

        Raises:
            ConnectionFailed: when too many bytes wait for this kernel, or for all kernels of its tenant.
        """
        backlog = self._backlogs.get(channel)
        if backlog is not None and backlog.unacknowledged(UNSENT_MAX) > UNSENT_MAX:
            raise ConnectionFailed("the kernel takes no more messages")
        if not self._unsent.admits(sum(map(len, frames))):
            raise ConnectionFailed("too much waits for the kernels of the tenant, which do not read it")
        try:
            self._sockets[channel].send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ConnectionFailed("the kernel takes no more messages") from None
        if backlog is not None:
            backlog.count_sent(frames)
        self._drain_soon(channel)  # sending can clear the signal of a message that has arrived meanwhile

    def expect_end(self) -> None:
        """Do not renew lost connections from now on, because the gateway ends the kernel."""
        self._ending = True

    def close(self, *, reset: bool = False) -> None:
        """Close the sockets. With `reset`, the connections also end at once in the kernel's sandbox. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for backlog in self._backlogs.values() if reset else ():
            backlog.reset_when_closed()
        self.connected.set()
        self._watchdog.close()
        self._unsent.close()
        for monitor in self._monitors.values():
            self._loop.remove_reader(monitor.FD)
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.disable_monitor()  # first, or libzmq's thread waits for ever to report the end to a closed monitor
            socket.close()
        for monitor in self._monitors.values():
            monitor.close()
