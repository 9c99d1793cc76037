"""Reads the kernel's shell channel in the main thread, until a client requests a subshell.

In ipykernel a separate thread reads this channel, so that cells of subshells can run at the same time as a cell of the
main shell. So each cell and each reply changes threads twice, although clients hardly use subshells. Here the first
request for a subshell starts that thread; from then on the channel works like in ipykernel.
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
    """Reads and writes the shell channel in the main thread."""

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
            publisher: sends replies together with other messages.
            handle: handles a message.
            forward: sends replies after the channel was given up.
        """
        self._socket = socket
        self._forward = forward
        self._publisher = publisher
        self._loop = loop
        self._handle = handle
        #: context of all messages, so that the context variables of a cell exist in the next cell
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        #: lock of the socket
        self._using = threading.RLock()
        #: True if a reply was sent since the last read; sending clears the descriptor's event that signals a request
        self._replied = False
        self.given_up = False
        loop.add_reader(socket.FD, self.read)
        loop.call_soon(self.read)

    def read(self) -> None:
        """Read a message, and schedule the next read for the time when this message is handled or waits."""
        if self._take():
            self._loop.call_soon(self.read)
        else:
            self._replied = False

    def read_all(self) -> None:
        """Read all messages that have arrived."""
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
        """Schedule a coroutine on the event loop. The coroutines start in the order of these calls."""
        task = self._loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._publisher.release()  # if a request has failed, messages may still be held
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
        self._forward(reply.frames)  # another thread has taken the socket after the reply was made

    def give_up(self) -> None:
        """Stop using the socket forever. Called in another thread."""
        with self._using:
            self.given_up = True
        self._loop.call_soon_threadsafe(self._loop.remove_reader, self._socket.FD)


class Manager(SubshellManager):
    """ipykernel's manager of subshells. The main shell's replies go to `Shell` until that is given up."""

    shell: Shell | None = None

    def get_subshell_to_shell_channel_socket(self, subshell_id: str | None) -> Any:
        """Return the object that sends the replies of a shell."""
        if subshell_id is None and self.shell is not None and not self.shell.given_up:
            return self.shell
        return super().get_subshell_to_shell_channel_socket(subshell_id)


class ShellThread(ShellChannelThread):
    """The thread that reads the shell channel after the first request for a subshell."""

    _manager: Any
    shell_stream: Any

    @property
    def manager(self) -> Any:
        """The `Manager` of the subshells. The main thread makes it."""
        if self._manager is None:
            self._manager = Manager(self._zmq_context, self.io_loop, self.shell_stream)
        return self._manager

    def start(self) -> None:
        """Do nothing, because `begin` starts the thread later."""

    def begin(self) -> None:
        """Start the thread, unless it was started before."""
        if self.ident is None:
            super().start()

    def take_over(self, on_recv: Callable[..., Any]) -> None:
        """Read the channel instead of the main thread.

        Args:
            on_recv: handles a message.
        """
        shell = self.manager.shell
        if shell is None or shell.given_up:
            return
        shell.give_up()
        # The handler is registered again in the reading thread, because that thread has not seen earlier events.
        self.io_loop.add_callback(self.shell_stream.on_recv, on_recv, copy=False)
        self.begin()
