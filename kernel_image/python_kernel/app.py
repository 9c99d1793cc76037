"""The application that owns the kernel's sockets. It is ipykernel's application with some changes.

- iopub never drops messages (XPUB_NODROP). With ipykernel's settings, a slow reader loses outputs and the final `idle`.
  Few messages wait for a reader (`UNREAD`), because they are in the memory of the kernel.
- Every subscriber gets a welcome message, not only the first one (XPUB_VERBOSE).
- The thread that makes a message or text also sends it (`publishing.py`), and the thread that runs requests also reads
  them (`shell.py`).
- The kernel is our own class (`kernel.py`).
- The application binds its sockets only when the kernel is complete, and does not connect to itself until the debugger
  is used: gVisor of 2024 cannot restore many kernels that do (see docs/decisions/sleep.md).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import site
import sys
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
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from . import bundle
from .kernel import PythonKernel
from .publishing import KernelSession, Publisher, Stream
from .shell import ShellThread

PROGRAMS = Path(__file__).parents[1] / "kernelspecs/python/programs.py"
#: messages that wait for a reader of iopub; then the next one waits, and so does the code that prints. Of printed text
#: they are at most 16 million characters; libzmq's own limit of 1,000 is 256 million, more than the kernel's memory
UNREAD = 64


class KernelApp(IPKernelApp):
    """The application that owns the kernel's sockets."""

    control_thread: Any
    iopub_thread: Any
    kernel: Any
    #: False until `listen` is called; until then, `_bind_socket` does nothing when ipykernel calls it
    listens = False

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Accept only `-f CONNECTION_FILE`. ipykernel's parser would set up hundreds of further options.

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
        # Otherwise each cell would make eight log records, which the handler would discard.
        self.log.setLevel(self.log_level)
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        try:
            super().init_kernel()
        finally:
            del sys.modules["debugpy"]

    def _session_default(self) -> KernelSession:
        return KernelSession(parent=self)

    def _ip_default(self) -> str:
        return "127.0.0.1"  # used until the connection file is read; jupyter_client would list all network interfaces

    def _bind_socket(self, s: zmq.Socket[bytes], port: int) -> Any:
        if not self.listens:
            return port
        if s.socket_type == zmq.ROUTER:
            s.sndhwm = 0  # no limit; otherwise replies are dropped silently when 1,000 of them are unread
        return super()._bind_socket(s, port)

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Open the control channel, and replace the shell channel's thread with one that starts on demand."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()
        self.shell_channel_thread = ShellThread(context, daemon=True)

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Open iopub like ipykernel, but with our own publisher."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        socket.sndhwm = UNREAD
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._apply_curve_server_options(socket)
        self.iopub_port = self._bind_socket(socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = Publisher(socket, pipe=True, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def init_heartbeat(self) -> None:
        """Start the heartbeat, but only after `listen` was called."""
        if self.listens:
            super().init_heartbeat()

    def listen(self) -> None:
        """Bind the sockets, each in the thread that uses it. iopub is the last one.

        Raises:
            ZMQError: when a port is taken. A kernel without one of its channels must not run.
        """
        self.listens = True
        self._bind(self.shell_socket, self.shell_port)
        self._bind(self.stdin_socket, self.stdin_port)
        asyncio.run_coroutine_threadsafe(self._bind_control(), self.control_thread.io_loop.asyncio_loop).result()
        self._shell = self.shell_socket.getsockopt(zmq.LAST_ENDPOINT)
        self.init_heartbeat()
        with self.iopub_thread.sending:
            self._bind(self.iopub_thread.socket, self.iopub_port)
            self.iopub_thread.welcome()

    def log_connection_info(self) -> None:
        """Record the ports. Nothing is printed, because a cell that forks would print ipykernel's hint again."""
        self._ports = {name: getattr(self, f"{name}_port") for name in ("shell", "iopub", "stdin", "hb", "control")}

    def connect_debugger(self) -> None:
        """Connect the debugger to the shell channel. Called in the thread that uses this connection."""
        self._apply_curve_client_options(self.debug_shell_socket)
        self.debug_shell_socket.connect(self._shell)

    async def _bind_control(self) -> None:
        self._bind(self.control_socket, self.control_port)

    def _bind(self, socket: zmq.Socket[bytes], port: int) -> None:
        self._apply_curve_server_options(socket)
        self._bind_socket(socket, port)

    def wait(self) -> None:
        """Listen immediately, because this application has its keys from the start."""
        self.listen()

    def close(self) -> None:
        """Close all sockets. This starts the shell channel's thread, which closes the sockets between shells."""
        if self.shell_channel_thread is not None:
            self.shell_channel_thread.begin()
        super().close()


def load_programs() -> None:
    """Load the module that runs whole programs, so that the gateway need not send it in a cell."""
    name = "_kernel_gateway_programs"
    spec = importlib.util.spec_from_file_location(name, PROGRAMS)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def find_user_packages() -> None:
    """Let cells import packages that `pip install --user` puts into the workspace, after the image's own packages.

    The kernel itself starts without these packages (`-s`), so they cannot prevent its start.
    """
    if "PYTHONUSERBASE" not in os.environ:  # noqa: TID251 - the sandbox's, not the gateway's
        return
    path = site.getusersitepackages()
    sys.path.append(path)
    # The import system would remember that this directory does not exist yet. This finder checks it again.
    kinds = [(ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES)]
    sys.path_importer_cache[path] = FileFinder(path, *kinds)


def config(kernel: type[PythonKernel] = PythonKernel) -> Config:
    """Return the settings for a kernel of this class."""
    settings = Config()
    settings.KernelApp.outstream_class = f"{Stream.__module__}.{Stream.__name__}"
    settings.KernelApp.kernel_class = kernel
    settings.HistoryManager.enabled = False
    settings.Session.check_pid = False
    settings.IPythonKernel._execute_sleep = 0  # noqa: SLF001 - the setting's name; saves half a millisecond per cell
    return settings


def main(kind: type[KernelApp]) -> None:
    """Run a kernel until it ends.

    Args:
        kind: class of the application: `KernelApp`, or `WaitingApp`, which waits for its keys.
    """
    load_programs()
    app = kind.instance(config=config())
    app.initialize()
    bundle.release()
    find_user_packages()
    app.wait()
    app.start()
