"""The kernel: ipykernel's kernel with some changes.

- All output of a cell is sent before its reply, also that of its child processes and of C code (`descriptors.py`).
- A cell's messages are sent together, and an interrupt reaches a cell only after clients have seen its begin.
- An interrupt also ends a cell that waits (`await`), immediately and also in a subshell. It does not reach processes of
  earlier cells (`children.py`).
- A warm kernel imports modules ahead of need, and gets its session's environment and directory when it is leased.
- The first debug request loads the debugger, which would take a quarter of a kernel's start, and 7 MB.
- There is no history database, which would take a fifth of a small cell's time. The history is kept in memory
  (`history.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from IPython.core.error import StdinNotImplementedError
from traitlets import Type

from . import descriptors, imports
from .children import Children
from .endings import INTERRUPTS, EndingShell
from .extras import extras_of, granted
from .publishing import Stream
from .shell import Shell
from .tools import Calls

#: names of the errors of interrupted cells
_INTERRUPTED = {error.__name__ for error in INTERRUPTS}
#: seconds within which an interrupt ends a process that does not handle its signal
_DYING = 0.05
#: seconds in which debugpy has left a client after `disconnect`. If the next one came earlier, debugpy (1.8.22) would
#: send the former one an event, and the error would end its thread that accepts clients, until the kernel ends.
_DEBUGPY_LEAVES = 0.3
#: message of the error for code that asks for input, if the client cannot be asked
_NO_ANSWERS = (
    "nobody can be asked here: send the answers with the cell (`stdin` in the gateway's own API), or run it over "
    "its WebSocket or by a Jupyter client, which ask"
)


def _pip(line: str) -> None:
    from .packages import pip  # noqa: PLC0415 - few cells install a package

    pip(line)


def _in_frame(shell: Any, frame: int | None) -> AbstractContextManager[str]:
    """Let code run in a frame of the last uncaught exception, if the cell's request names one."""
    if frame is None:
        return nullcontext("")
    from . import post_mortem  # noqa: PLC0415 - few sessions are debugged

    return post_mortem.entered(shell, frame)


class KernelShell(EndingShell):
    """The shell that runs cells."""

    def system_piped(self, cmd: str) -> None:
        """Run the command of `!command` on a terminal."""
        from . import terminal  # noqa: PLC0415 - few cells run a command

        terminal.use()
        super().system_piped(cmd)

    system = system_piped

    def init_magics(self) -> None:
        """Replace `%pip`."""
        super().init_magics()
        register: Any = self.register_magic_function  # IPython's types are those of a method
        register(_pip, "line", "pip")


class PythonKernel(IPythonKernel):
    """A kernel that can be leased after its start, and loads rarely used parts on request."""

    session: Any
    io_loop: Any
    shell_channel_thread: Any
    iopub_thread: Any
    msg_types = [*IPythonKernel.msg_types, "preload_request"]  # noqa: RUF012 - as in ipykernel
    shell_class = Type(KernelShell)
    parent: Any  # the application
    control_msg_types = [  # noqa: RUF012 - as in ipykernel
        *IPythonKernel.control_msg_types,
        "lease_request",
        "tool_reply",
        "variables_request",
        "frames_request",
    ]

    def __init__(self, **options: Any) -> None:
        """Accept the options of ipykernel's kernel."""
        super().__init__(**options)
        self._children = Children()
        #: tasks of running cells with `await` in subshells
        self._in_subshells: set[asyncio.Task[Any]] = set()
        self._tool_calls = Calls(self._publish_tool_call)
        #: whether an error was formatted ahead of the first real one
        self._rehearsed = False

    def start(self) -> None:
        """Start to answer requests."""
        super().start()
        manager = self.shell_channel_thread.manager
        self._main = manager.shell = Shell(
            self.shell_channel_thread.shell_stream.socket,
            self.io_loop.asyncio_loop,
            self.iopub_thread,
            handle=self._handle,
            forward=lambda frames: manager.get_subshell_to_shell_channel_socket(None).send_multipart(frames),
        )

    async def _handle(self, frames: list[zmq.Frame]) -> None:
        _, message = self.session.feed_identities(frames, copy=False)
        if b'"subshell_id"' in message[1].bytes and json.loads(message[1].bytes).get("subshell_id") is not None:
            self._read_in_thread()
            self.shell_channel_thread.io_loop.add_callback(self.shell_channel_thread_main, frames)
        else:
            await self.shell_main(None, frames)

    def _read_in_thread(self) -> None:
        self.shell_channel_thread.take_over(self.shell_channel_thread_main)

    async def create_subshell_request(self, *request: Any) -> None:
        """Create a subshell."""
        self._read_in_thread()
        await super().create_subshell_request(*request)

    async def delete_subshell_request(self, *request: Any) -> None:
        """Delete a subshell."""
        self._read_in_thread()
        await super().delete_subshell_request(*request)

    async def list_subshell_request(self, *request: Any) -> None:
        """List subshells."""
        self._read_in_thread()
        await super().list_subshell_request(*request)

    def enter_eventloop(self) -> None:
        """Run another event loop in the main thread. The shell channel's thread then passes messages to that loop."""
        self._read_in_thread()
        super().enter_eventloop()

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        if subshell_id is not None or self._main.given_up:
            super()._abort_queues(subshell_id)
            return
        self._aborting = True
        self._main.read_all()  # all waiting requests are aborted
        self._main.run(self._stop_aborting())

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        # A cell's `busy` and its input are sent together, then its output, then its reply and `idle` together.
        cell = channel == "shell" and self._is_cell(self.get_parent("shell"))
        if cell and status == "busy":
            self.iopub_thread.hold(unseen=True)  # until the cell can be interrupted
        super()._publish_status(status, channel, parent)
        if cell and status == "idle":
            self.iopub_thread.release()

    def _is_cell(self, parent: dict[str, Any]) -> bool:
        return self._in_main_thread() and parent.get("header", {}).get("msg_type") == "execute_request"

    def _in_main_thread(self) -> bool:
        return threading.get_ident() == threading.main_thread().ident

    async def execute_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Run a cell and send its reply. Until then, the output of child processes belongs to this cell."""
        with Stream.cells.running(parent["header"]):
            await super().execute_request(stream, ident, parent)

    async def do_execute(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a cell, and send all that it has printed before its reply is sent."""
        if self._in_main_thread():
            reply = await self._run_interruptibly(*args, **options)
            self.iopub_thread.hold()
        else:
            reply = await self._run_in_subshell(*args, **options)
        descriptors.flush()
        for stream in (self._stdout, self._stderr):
            if stream not in (sys.stdout, sys.stderr):  # a cell has replaced the stream, so ipykernel does not flush it
                stream.flush()
        return reply

    async def _run_in_subshell(self, *args: Any, **options: Any) -> dict[str, Any]:
        try:
            return await self.run_cell(*args, **options)
        except asyncio.CancelledError:
            return self._interrupted()

    async def _run_interruptibly(self, *args: Any, **options: Any) -> dict[str, Any]:
        # Interrupts are accepted from the time when clients see that the cell runs until its end. At any other time an
        # interrupt would leave the request without a reply.
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.iopub_thread.release()
                return await self.run_cell(*args, **options)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except INTERRUPTS:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return self._interrupted()

    @contextmanager
    def _cancel_on_sigint(self, cell: asyncio.Task[Any]) -> Iterator[None]:
        """Let each interrupt end a cell with `await` by a CancelledError.

        ipykernel only adds a callback to the event loop. That neither wakes a waiting loop nor stops code that blocks
        the loop.
        """
        loop = asyncio.get_running_loop()
        asked, seen = False, self._children.interrupts

        def cancel() -> None:
            nonlocal asked
            if asked:
                asked = False
                cell.cancel()

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            nonlocal asked, seen
            again, seen = asked or self._children.interrupts > seen + 1, self._children.interrupts
            # The error may be raised only in the code of a coroutine: in the event loop's code it would end the loop.
            task = asyncio.current_task(loop)
            if (task is cell or again) and getattr(task and task.get_coro(), "cr_running", False):
                asked = False
                raise asyncio.CancelledError
            asked = True  # if this is still set at another interrupt, a task blocks the loop, and gets the error

        before = signal.getsignal(signal.SIGINT)
        # The loop calls `cancel` after `interrupt`, because the signal also writes to a descriptor that wakes the loop.
        # Otherwise a signal just before the wait, or in another thread, would be noticed only after the wait.
        loop.add_signal_handler(signal.SIGINT, cancel)
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def _dummy_context_manager(self, cell: asyncio.Task[Any]) -> Iterator[None]:
        """Let an interrupt request end a waiting cell with `await` in a subshell. Signals do not reach its thread."""
        self._in_subshells.add(cell)
        try:
            yield
        finally:
            self._in_subshells.discard(cell)

    def _send_interrupt_children(self) -> None:
        self._children.interrupt()
        for cell in list(self._in_subshells):
            cell.get_loop().call_soon_threadsafe(cell.cancel)

    async def run_cell(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a cell's code. Kernels of other languages override this."""
        shell: Any = self.shell
        shell._last_traceback = None  # noqa: SLF001 - otherwise an error that is not shown gets an earlier traceback
        cell = self.get_parent("shell")
        extras = extras_of(cell)
        given, servers = extras.get("tools", ()), extras.get("tool_servers", ())
        tools = self._tool_calls.allowed(cell, given, servers) if given or servers else nullcontext()
        with granted(extras, shell.display_formatter), tools, _in_frame(shell, extras.get("frame")) as problem:
            if problem:
                args = (f"raise LookupError({problem!r})", *args[1:])
            ended: list[str] = []
            try:
                reply: dict[str, Any] = await super().do_execute(*args, **options)
            finally:
                if self._in_main_thread():
                    ended = self._children.leave()
            if reply.get("ename") in _INTERRUPTED and self._in_main_thread():
                self._tell_of(ended)
            if reply.get("ename") == "NoneType":  # ipykernel has no error if a cell's result cannot be shown
                reply |= shell.shown_error
            return reply

    def _tell_of(self, ended: list[str]) -> None:
        """Print which processes of earlier cells an interrupt has ended. An interrupt by signal reaches them, too."""
        if self._children.left:
            time.sleep(_DYING)
            ended += self._children.leave()
        if ended:
            print(f"Processes of earlier cells have ended, too: {', '.join(ended)}", file=self._stderr)

    def raw_input(self, prompt: str = "") -> str:
        """Ask the client for a line.

        Raises:
            StdinNotImplementedError: when the client cannot be asked.
        """
        self._require_answers()
        return str(super().raw_input(prompt))

    def getpass(self, *args: Any, **options: Any) -> str:
        """Ask the client for a password.

        Raises:
            StdinNotImplementedError: when the client cannot be asked.
        """
        self._require_answers()
        return str(super().getpass(*args, **options))

    def _require_answers(self) -> None:
        if not self._allow_stdin:
            raise StdinNotImplementedError(_NO_ANSWERS)

    def _interrupted(self) -> dict[str, Any]:
        """Publish the error of a cell that an interrupt has ended outside of its code, and return its reply."""
        error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
        self.send_response(self.iopub_socket, "error", error, ident=self._topic("error"))
        return error | {
            "status": "error",
            "execution_count": self.execution_count,
            "user_expressions": {},
            "payload": [],
        }

    def pre_handler_hook(self) -> None:
        """Accept interrupts during requests other than cells."""
        if not self._is_cell(self.get_parent("shell")):
            super().pre_handler_hook()

    def post_handler_hook(self) -> None:
        """Ignore interrupts again after requests other than cells."""
        if not self._is_cell(self.get_parent("shell")):
            super().post_handler_hook()

    async def _stop_aborting(self) -> None:
        async with self._main_asyncio_lock:
            self._aborting = False

    async def lease_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Apply a session's environment and directory, as if the kernel had started with them. This runs no cell."""
        self.apply_session(parent["content"]["env"], parent["content"]["cwd"])
        self.session.send(stream, "lease_reply", {"status": "ok"}, parent, ident)

    def apply_session(self, env: dict[str, str], directory: str) -> None:
        """Apply a session's environment, and its working directory unless that is empty."""
        os.environ.update(env)  # noqa: TID251 - the sandbox's, not the gateway's
        time.tzset()
        if directory:
            with suppress(
                OSError
            ):  # as in the launcher, the kernel stays in the workspace if there is something else at this path
                os.makedirs(directory, exist_ok=True)
                os.chdir(directory)
            shell: Any = self.shell
            shell.starting_dir = str(Path.cwd())
            shell.history_manager.dir_hist[:] = [Path.cwd()]  # cells know it as `_dh`

    def _publish_tool_call(self, cell: Mapping[str, Any], content: dict[str, Any]) -> None:
        for stream in (sys.stdout, sys.stderr):  # what was printed before the call is shown before it
            stream.flush()
        self.session.send(self.iopub_socket, "tool_call", content, cell, ident=self._topic("tool_call"))

    async def tool_reply(self, _stream: Any, _ident: list[bytes], parent: dict[str, Any]) -> None:
        """Give a call of a tool its answer, in the thread of the control channel. It has no reply."""
        self._tool_calls.answered(parent["content"])

    async def variables_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Describe all variables, or the one that the request names, in the thread of the control channel."""
        from . import variables  # noqa: PLC0415 - few sessions are asked for their variables

        shell: Any = self.shell
        namespace, name = shell.user_ns, parent["content"].get("name")
        if name is None:
            answer = variables.listed(namespace, shell.user_ns_hidden)
        else:
            answer = {"variable": variables.detailed(name, namespace[name])} if name in namespace else {}
        self.session.send(stream, "variables_reply", answer | {"status": "ok"}, parent, ident)

    async def frames_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Describe the frames of the last uncaught exception, in the thread of the control channel."""
        from . import post_mortem  # noqa: PLC0415 - few sessions are debugged

        answer = post_mortem.described(self.shell, parent["content"].get("frame"))
        self.session.send(stream, "frames_reply", answer | {"status": "ok"}, parent, ident)

    async def preload_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Import a module in the main thread, like a cell. The first one comes with all that an error needs."""
        problem = imports.ahead(parent["content"]["module"])
        if not self._rehearsed:
            self._rehearsed = True
            shell: Any = self.shell
            shell.rehearse()
        imports.freeze()
        self.session.send(stream, "preload_reply", {"status": "ok", "problem": problem}, parent, ident)

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The kernel's description. It lists the debugger even before that is loaded."""
        info: dict[str, Any] = super().kernel_info
        if "debugger" not in info["supported_features"]:
            info["supported_features"].append("debugger")
        return info

    async def poll_stopped_queue(self) -> None:
        """Poll the debugger's queue if the debugger is loaded."""
        if hasattr(self, "debugger"):
            await super().poll_stopped_queue()

    async def do_debug_request(self, msg: Any) -> Any:
        """Answer a debug request. The first request loads the debugger."""
        if not hasattr(self, "debugger"):
            self._load_debugger()
            self._polling = asyncio.create_task(self.poll_stopped_queue())  # noqa: TID251 - the attribute keeps it
        answer = await super().do_debug_request(msg)
        if msg["command"] == "disconnect":
            await asyncio.sleep(_DEBUGPY_LEAVES)
        return answer

    def _load_debugger(self) -> None:
        known = set(sys.modules)
        quiet = "PYDEVD_DISABLE_FILE_VALIDATION"  # otherwise debugpy prints a warning into the output of cells
        os.environ.setdefault(quiet, "1")  # noqa: TID251 - as above
        importlib.reload(sys.modules["ipykernel.debugger"])
        from .debugging import Debugger  # noqa: PLC0415 - few sessions are debugged

        loaded = [getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - known]
        self._kernel_modules += [file for file in loaded if file]  # the debugger must not step into these modules
        self.parent.connect_debugger()
        self.debugger = Debugger(
            self.log,
            self.debugpy_stream,
            self._publish_debug_event,
            self.debug_shell_socket,
            self.session,
            self._kernel_modules,
            self.debug_just_my_code,
            self.filter_internal_frames,
        )
