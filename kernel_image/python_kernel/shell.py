"""How the kernel reads its shell channel: by itself, until somebody asks for a subshell.

In ipykernel a thread of its own reads that channel, so that a subshell's cells can run beside one of the main shell.
Each cell and each reply then changes threads twice, although hardly anybody uses subshells. Here that thread is started
when the first subshell is asked for; from then on all is as in ipykernel.
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
    """The shell channel in the hands of the main thread."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        publisher: Publisher,
        *,
        handle: Handler,
        forward: Callable[[Sequence[Any]], None],
    ) -> None:
        """Read from now on.

        Args:
            socket: the channel's.
            loop: the main thread's.
            publisher: what replies are given to, to leave together with other messages.
            handle: what becomes of a message.
            forward: what sends replies when the channel was given up.
        """
        self._socket = socket
        self._forward = forward
        self._publisher = publisher
        self._loop = loop
        self._handle = handle
        #: of all messages: what a cell sets is there in the next one
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        #: held by whoever uses the socket
        self._using = threading.RLock()
        #: whether a reply was sent since the last look, which swallows the edge that tells of a request
        self._replied = False
        self.given_up = False
        loop.add_reader(socket.FD, self.read)
        loop.call_soon(self.read)

    def read(self) -> None:
        """Take a message, and look for the next when this one is handled, or waits for something."""
        if self._take():
            self._loop.call_soon(self.read)
        else:
            self._replied = False

    def read_all(self) -> None:
        """Take all messages that there are."""
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
        """Have something done when its turn has come: all in order, one at a time."""
        task = self._loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._publisher.release()  # for whoever failed on the way
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
        self._forward(reply.frames)  # the socket became another thread's since the reply was made

    def give_up(self) -> None:
        """Never use the socket again; called in another thread."""
        with self._using:
            self.given_up = True
        self._loop.call_soon_threadsafe(self._loop.remove_reader, self._socket.FD)


class Manager(SubshellManager):
    """The subshells, and whom the main shell's replies are given to."""

    shell: Shell | None = None

    def get_subshell_to_shell_channel_socket(self, subshell_id: str | None) -> Any:
        """What a shell sends its replies with."""
        if subshell_id is None and self.shell is not None and not self.shell.given_up:
            return self.shell
        return super().get_subshell_to_shell_channel_socket(subshell_id)


class ShellThread(ShellChannelThread):
    """The thread that reads the shell channel once there are subshells."""

    _manager: Any
    shell_stream: Any

    @property
    def manager(self) -> Any:
        """What it knows of subshells, a `Manager`; made by the main thread."""
        if self._manager is None:
            self._manager = Manager(self._zmq_context, self.io_loop, self.shell_stream)
        return self._manager

    def start(self) -> None:
        """Not yet."""

    def begin(self) -> None:
        """Start it, unless it has been."""
        if self.ident is None:
            super().start()

    def take_over(self, on_recv: Callable[..., Any]) -> None:
        """Read the channel in place of the main thread.

        Args:
            on_recv: what becomes of a message.
        """
        shell = self.manager.shell
        if shell is None or shell.given_up:
            return
        shell.give_up()
        # Said again where it reads: what came before has told its edge to nobody.
        self.io_loop.add_callback(self.shell_stream.on_recv, on_recv, copy=False)
        self.begin()
