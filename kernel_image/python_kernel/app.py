"""The application that owns the kernel's sockets: ipykernel's, with these changes.

- iopub never drops: with stock settings a slow reader loses outputs and the final `idle` (XPUB_NODROP).
- every subscriber is welcomed, not only the first (XPUB_VERBOSE).
- messages and text are sent by the thread that made them (`publishing.py`), requests are read by the thread that runs
  them (`shell.py`).
- the kernel is our own, too (`kernel.py`).
- it listens only when it is complete, and does not connect to itself until its debugger is used: gVisor of 2024 cannot
  restore many kernels that do (see docs/decisions/sleep.md).
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import threading
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


class KernelApp(IPKernelApp):
    """The application that owns the kernel's sockets."""

    control_thread: Any
    iopub_thread: Any
    kernel: Any
    #: False until `listen`: ipykernel's own binding of sockets does nothing before that
    listens = False

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
        if not self.listens:
            return port
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

    def init_heartbeat(self) -> None:
        """Start the heartbeat when the kernel listens."""
        if self.listens:
            super().init_heartbeat()

    def listen(self) -> None:
        """Bind the sockets as ipykernel does, each in the thread that uses it, and iopub as the last one."""
        self.listens = True
        self._bind(self.shell_socket, self.shell_port)
        self._bind(self.stdin_socket, self.stdin_port)
        bound = threading.Event()
        self.control_thread.io_loop.add_callback(self._bind, self.control_socket, self.control_port)
        self.control_thread.io_loop.add_callback(bound.set)
        bound.wait()
        self._shell = self.shell_socket.getsockopt(zmq.LAST_ENDPOINT)
        self.init_heartbeat()
        with self.iopub_thread.sending:
            self._bind(self.iopub_thread.socket, self.iopub_port)
            self.iopub_thread.welcome()

    def log_connection_info(self) -> None:
        """Note the ports, and print nothing: ipykernel's hint for a terminal would be printed by a cell that forks."""
        self._ports = {name: getattr(self, f"{name}_port") for name in ("shell", "iopub", "stdin", "hb", "control")}

    def connect_debugger(self) -> None:
        """Connect the debugger to the shell channel, from the thread that uses this connection."""
        self._apply_curve_client_options(self.debug_shell_socket)
        self.debug_shell_socket.connect(self._shell)

    def _bind(self, socket: zmq.Socket[bytes], port: int) -> None:
        self._apply_curve_server_options(socket)
        self._bind_socket(socket, port)

    def wait(self) -> None:
        """Listen at once: this application has had its keys from the start."""
        self.listen()

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


def config(kernel: type[PythonKernel] = PythonKernel) -> Config:
    """Return the settings of a kernel of this class."""
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
        kind: the usual application, or one that waits for its keys.
    """
    load_programs()
    app = kind.instance(config=config())
    app.initialize()
    bundle.release()
    find_user_packages()
    app.wait()
    app.start()
