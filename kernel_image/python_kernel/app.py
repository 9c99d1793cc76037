"""The kernel and the application that owns its sockets: ipykernel's, with these changes.

- iopub never drops: with stock settings a slow reader loses outputs and the final `idle` (XPUB_NODROP).
- every subscriber is welcomed, not only the first (XPUB_VERBOSE).
- messages and text are sent by the thread that made them (`publishing.py`), requests are read by the thread that runs
  them (`shell.py`).
- a warm kernel imports modules ahead of need, and gets its session's environment and directory when it is leased.
- the debugger is loaded by the first debug request: it takes a quarter of a kernel's start, and 7 MB.
- no history database, which costs a fifth of a small cell's time: the history is answered from memory (`history.py`).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import site
import sys
import threading
import time
from contextlib import suppress
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Type
from traitlets.config import Config

from . import bundle, imports
from .history import RememberingShell
from .publishing import KernelSession, Publisher, Stream
from .shell import Shell, ShellThread

PROGRAMS = Path(__file__).parents[1] / "kernelspecs/python/programs.py"


class PythonKernel(IPythonKernel):
    """A kernel that can be leased after it has started, and that loads rarely used parts on request."""

    session: Any
    io_loop: Any
    shell_channel_thread: Any
    iopub_thread: Any
    msg_types = [*IPythonKernel.msg_types, "preload_request"]  # noqa: RUF012 - as in ipykernel
    shell_class = Type(RememberingShell)
    control_msg_types = [*IPythonKernel.control_msg_types, "lease_request"]  # noqa: RUF012 - as in ipykernel

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
        """Run another event loop in the main thread; the shell channel's thread then passes the messages to it."""
        self._read_in_thread()
        super().enter_eventloop()

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        if subshell_id is not None or self._main.given_up:
            super()._abort_queues(subshell_id)
            return
        self._aborting = True
        self._main.read_all()  # requests that wait by now are aborted
        self._main.run(self._stop_aborting())

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        # A cell's `busy` and input leave together, then its output, then its reply and `idle` together.
        cell = channel == "shell" and self._is_cell(self.get_parent("shell"))
        if cell and status == "busy":
            self.iopub_thread.hold()
        super()._publish_status(status, channel, parent)
        if cell and status == "idle":
            self.iopub_thread.release()

    def _is_cell(self, parent: dict[str, Any]) -> bool:
        return self._in_main_thread() and parent.get("header", {}).get("msg_type") == "execute_request"

    def _in_main_thread(self) -> bool:
        return threading.get_ident() == threading.main_thread().ident

    async def do_execute(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a cell."""
        reply: dict[str, Any]
        if not self._in_main_thread():
            reply = await super().do_execute(*args, **options)
            return reply
        # Interrupts are accepted from the moment at which clients see that the cell runs until its end. At any other
        # moment an interrupt would leave the request without its reply.
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.iopub_thread.release()
                reply = await super().do_execute(*args, **options)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reply = self._interrupted()
        self.iopub_thread.hold()
        return reply

    def _interrupted(self) -> dict[str, Any]:
        """Publish the error of a cell that was interrupted before its code ran, and return its reply."""
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
        """Apply a session's environment and directory, as if started with them. They are data and run no cell."""
        self.settle(parent["content"]["env"], parent["content"]["cwd"])
        self.session.send(stream, "lease_reply", {"status": "ok"}, parent, ident)

    def settle(self, env: dict[str, str], directory: str) -> None:
        """Apply a session's environment, and its directory unless that is empty."""
        os.environ.update(env)  # noqa: TID251 - the sandbox's, not the gateway's
        time.tzset()
        if directory:
            with suppress(OSError):  # as in the launcher: an obstacle at this path does not prevent the start
                os.makedirs(directory, exist_ok=True)
                os.chdir(directory)
            shell: Any = self.shell
            shell.starting_dir = str(Path.cwd())
            shell.history_manager.dir_hist[:] = [Path.cwd()]  # cells know it as `_dh`

    async def preload_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Import a module in the main thread, as a cell would."""
        problem = imports.ahead(parent["content"]["module"])
        self.session.send(stream, "preload_reply", {"status": "ok", "problem": problem}, parent, ident)

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The kernel's description, with the debugger even before it is loaded."""
        info: dict[str, Any] = super().kernel_info
        if "debugger" not in info["supported_features"]:
            info["supported_features"].append("debugger")
        return info

    async def poll_stopped_queue(self) -> None:
        """Poll the debugger's queue, once the debugger is loaded."""
        if hasattr(self, "debugger"):
            await super().poll_stopped_queue()

    async def do_debug_request(self, msg: Any) -> Any:
        """Answer like a kernel that has had its debugger from the start."""
        if not hasattr(self, "debugger"):
            self._load_debugger()
            self._polling = asyncio.create_task(self.poll_stopped_queue())  # noqa: TID251 - the attribute keeps it
        return await super().do_debug_request(msg)

    def _load_debugger(self) -> None:
        known = set(sys.modules)
        quiet = "PYDEVD_DISABLE_FILE_VALIDATION"  # or debugpy prints a warning into the cells' output
        os.environ.setdefault(quiet, "1")  # noqa: TID251 - as above
        importlib.reload(sys.modules["ipykernel.debugger"])
        loaded = [getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - known]
        self._kernel_modules += [file for file in loaded if file]  # no code of cells: no step leads into it
        self.debugger = self.debugger_class(
            self.log,
            self.debugpy_stream,
            self._publish_debug_event,
            self.debug_shell_socket,
            self.session,
            self._kernel_modules,
            self.debug_just_my_code,
            self.filter_internal_frames,
        )


class KernelApp(IPKernelApp):
    """The application that owns the kernel's sockets."""

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Accept `-f CONNECTION_FILE` only, without the parser for hundreds of further options.

        Raises:
            ValueError: when another option is given.
        """
        given = sys.argv[1:] if argv is None else argv
        if given:
            option, self.connection_file = given
            if option != "-f":
                raise ValueError(option)

    def init_kernel(self) -> None:
        """Create the kernel as if debugpy were not installed; `PythonKernel` loads it later."""
        # Without this, eight log records are made for each cell and discarded by their handler.
        self.log.setLevel(self.log_level)
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        try:
            super().init_kernel()
        finally:
            del sys.modules["debugpy"]

    def _session_default(self) -> KernelSession:
        return KernelSession(parent=self)

    def _ip_default(self) -> str:
        return "127.0.0.1"  # until the connection file is read; jupyter_client would list all interfaces

    def _bind_socket(self, s: zmq.Socket[bytes], port: int) -> Any:
        if s.socket_type == zmq.ROUTER:
            s.sndhwm = 0  # or replies are dropped silently when their reader is 1,000 behind
        return super()._bind_socket(s, port)

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Open the control channel, and replace the shell channel's thread with one that starts on demand."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()
        self.shell_channel_thread = ShellThread(context, daemon=True)

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Open iopub as ipykernel does, but with our own publisher."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._apply_curve_server_options(socket)
        self.iopub_port = self._bind_socket(socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = Publisher(socket, pipe=True, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def wait(self) -> None:
        """Do nothing: this application has had its keys from the start."""

    def close(self) -> None:
        """Close all sockets. The shell channel's thread closes those between shells, so it must have been started."""
        if self.shell_channel_thread is not None:
            self.shell_channel_thread.begin()
        super().close()


def load_programs() -> None:
    """Load the module that runs whole programs, so that no cell needs to contain it."""
    name = "_kernel_gateway_programs"
    spec = importlib.util.spec_from_file_location(name, PROGRAMS)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def find_user_packages() -> None:
    """Let cells import what `pip install --user` will put into the workspace, in the order of a virtual environment.

    The kernel itself starts without these packages (`-s`): they cannot keep it from starting.
    """
    if "PYTHONUSERBASE" not in os.environ:  # noqa: TID251 - the sandbox's, not the gateway's
        return
    path = site.getusersitepackages()
    sys.path.append(path)
    # The import system would remember that there is no such directory yet. This finder looks again.
    kinds = [(ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES)]
    sys.path_importer_cache[path] = FileFinder(path, *kinds)


def config() -> Config:
    """Return the settings of the kernel."""
    settings = Config()
    settings.KernelApp.outstream_class = f"{Stream.__module__}.{Stream.__name__}"
    settings.KernelApp.kernel_class = f"{__name__}.PythonKernel"
    settings.HistoryManager.enabled = False
    settings.Session.check_pid = False
    settings.IPythonKernel._execute_sleep = 0  # noqa: SLF001 - the setting's name; saves half a millisecond per cell
    return settings


def main(kind: type[KernelApp]) -> None:
    """Run a kernel until it ends.

    Args:
        kind: the usual application, or one that waits for its keys.
    """
    load_programs()
    app = kind.instance(config=config())
    app.initialize()
    bundle.release()
    find_user_packages()
    app.wait()
    app.start()
