"""A kernel that is complete except for its keys: it has imported its modules, and waits for its connection.

A sandbox is checkpointed while its kernel waits here, and each session's kernel is restored from that checkpoint. So
nothing is made before the wait that must be a session's own: no key, no id, no bound socket.

The launcher is at the other end of standard input, a connection in both directions. One JSON line each:

    launcher: {"preload": [MODULE, ...], ...}      kernel: {MODULE: why it could not be imported, ...}
    launcher: the handshake with the keys          kernel: {}, when it serves
"""

from __future__ import annotations

import json
import os
import resource
import threading
import uuid
from typing import Any

import zmq

from . import imports
from .app import KernelApp
from .renewal import Sources


class WaitingApp(KernelApp):
    """An application whose sockets are bound when it gets its keys."""

    control_thread: Any
    iopub_thread: Any
    kernel: Any
    #: False as soon as there are keys
    waiting = True

    def parse_command_line(self, _argv: list[str] | None = None) -> None:
        """Do nothing: the connection file comes later, like the keys."""

    def init_connection_file(self) -> None:
        """Do nothing."""

    def write_connection_file(self, **_: Any) -> None:
        """Do nothing: the launcher writes the file."""

    def init_heartbeat(self) -> None:
        """Start the heartbeat as soon as there are keys."""
        if not self.waiting:
            super().init_heartbeat()

    def _bind_socket(self, s: zmq.Socket[bytes], port: int) -> Any:
        return port if self.waiting else super()._bind_socket(s, port)

    def wait(self) -> None:
        """Import modules, wait for the keys, and bind the sockets."""
        first = _receive()
        problems = {module: problem for module in first["preload"] if (problem := imports.ahead(module))}
        sources = Sources()
        imports.settle()
        _send(problems)
        handshake = _receive()  # checkpoints are taken here
        self.waiting = False
        for name, value in handshake["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        sources.renew()
        self.session.session = str(uuid.uuid4())
        self.kernel.ident = str(uuid.uuid4())
        self.connection_file = handshake["connection_file"]
        self.load_connection_info(handshake["connection"])
        self._open()
        # The kernel itself has changed some of the variables that it was started with.
        env = {name: value for name, value in handshake["env"].items() if first["env"].get(name) != value}
        self.kernel.settle(env, handshake["cwd"])
        _send({})
        _leave()

    def _open(self) -> None:
        """Bind the sockets as ipykernel does at a usual start, each in the thread that uses it."""
        self._bind(self.shell_socket, self.shell_port)
        self._bind(self.stdin_socket, self.stdin_port)
        bound = threading.Event()
        self.control_thread.io_loop.add_callback(self._bind, self.control_socket, self.control_port)
        self.control_thread.io_loop.add_callback(bound.set)
        bound.wait()
        with self.iopub_thread.sending:
            self._bind(self.iopub_thread.socket, self.iopub_port)
            self.iopub_thread.welcome()
        self._apply_curve_client_options(self.debug_shell_socket)
        self.debug_shell_socket.connect(self.shell_socket.getsockopt(zmq.LAST_ENDPOINT))
        self.init_heartbeat()
        self.log_connection_info()
        self.kernel.record_ports({f"{name}_port": port for name, port in self._ports.items()})

    def _bind(self, socket: zmq.Socket[bytes], port: int) -> None:
        self._apply_curve_server_options(socket)
        self._bind_socket(socket, port)


def _receive() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            raise SystemExit("the launcher has ended")
        line += piece
    message: dict[str, Any] = json.loads(line)
    return message


def _send(message: dict[str, Any]) -> None:
    os.write(0, json.dumps(message).encode() + b"\n")


def _leave() -> None:
    """Give standard input what it is for cells: nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
