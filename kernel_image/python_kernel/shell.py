"""How the kernel reads its shell channel: in the main thread, until a client requests a subshell.

In ipykernel a separate thread reads that channel, so that a subshell's cells can run beside one of the main shell.
Each cell and each reply then changes threads twice, although clients hardly use subshells. Here that thread is started
by the first request for a subshell; from then on the channel works as in ipykernel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any

import zmq
from ipykernel.shellchannel import ShellChannelThread
from ipykernel.subshell_manager import SubshellManager

from .publishing import Outgoing, Publisher

Handler = Callable[[list[zmq.Frame]], Coroutine[Any, Any, None]]


class Shell:
    """The shell channel, read and written by the main thread."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        publisher: Publisher,
        *,
        handle: Handler,
        forward: Callable[[Sequence[Any]], None],
    ) -> None:
        """Start to read.

        Args:
            socket: socket of the channel.
            loop: event loop of the main thread.
            publisher: publisher that sends replies together with other messages.
            handle: handler of a message.
            forward: function that sends replies after the channel was given up.
        """
        self._socket = socket
        self._forward = forward
        self._publisher = publisher
        self._loop = loop
        self._handle = handle
        #: context of all messages: a variable set by a cell exists in the next cell
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        #: lock of the socket
        self._using = threading.RLock()
        #: whether a reply was sent since the last read; sending clears the descriptor's edge that signals a request
        self._replied = False
        self.given_up = False
        loop.add_reader(socket.FD, self.read)
        loop.call_soon(self.read)

    def read(self) -> None:
        """Take a message, and schedule the next read for when this message is handled or waits."""
        if self._take():
            self._loop.call_soon(self.read)
        else:
            self._replied = False

    def read_all(self) -> None:
        """Take all messages that have arrived."""
        while self._take():
            pass

    def _take(self) -> bool:
        with self._using:
            if self.given_up:
                return False
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
        self.run(self._handle(frames))
        return True

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Schedule work on the event loop: all work runs in order, one piece at a time."""
        task = self._loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._publisher.release()  # a failed request may have left messages held
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a request failed", "exception": task.exception()})
        if self._replied:
            self.read()

    def send_multipart(self, frames: Sequence[Any], *_args: Any, **_options: Any) -> None:
        """Send a reply."""
        self._publisher.post(self._send, Outgoing(frames))

    def _send(self, reply: Outgoing) -> None:
        with self._using:
            if not self.given_up:
                self._replied = True
                reply.send(self._socket)
                return
        self._forward(reply.frames)  # another thread has taken the socket since the reply was made

    def give_up(self) -> None:
        """Stop using the socket for good; called in another thread."""
        with self._using:
            self.given_up = True
        self._loop.call_soon_threadsafe(self._loop.remove_reader, self._socket.FD)


class Manager(SubshellManager):
    """The subshells, and the sender of the main shell's replies."""

    shell: Shell | None = None

    def get_subshell_to_shell_channel_socket(self, subshell_id: str | None) -> Any:
        """Return the object with which a shell sends its replies."""
        if subshell_id is None and self.shell is not None and not self.shell.given_up:
            return self.shell
        return super().get_subshell_to_shell_channel_socket(subshell_id)


class ShellThread(ShellChannelThread):
    """The thread that reads the shell channel once there are subshells."""

    _manager: Any
    shell_stream: Any

    @property
    def manager(self) -> Any:
        """The `Manager` of the subshells; made by the main thread."""
        if self._manager is None:
            self._manager = Manager(self._zmq_context, self.io_loop, self.shell_stream)
        return self._manager

    def start(self) -> None:
        """Do nothing: `begin` starts the thread."""

    def begin(self) -> None:
        """Start the thread, unless it has been started."""
        if self.ident is None:
            super().start()

    def take_over(self, on_recv: Callable[..., Any]) -> None:
        """Read the channel in place of the main thread.

        Args:
            on_recv: handler of a message.
        """
        shell = self.manager.shell
        if shell is None or shell.given_up:
            return
        shell.give_up()
        # Registered again in the reading thread: the edge of earlier messages was not seen there.
        self.io_loop.add_callback(self.shell_stream.on_recv, on_recv, copy=False)
        self.begin()
