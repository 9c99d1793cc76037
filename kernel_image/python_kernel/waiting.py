"""A kernel that imports its modules, and then waits for its keys and its connection.

While the kernel waits, a checkpoint of its sandbox is taken, and the kernels of several sessions are restored from that
checkpoint. So the kernel makes nothing before the wait that must not be shared: no key, no id, no bound socket.

Standard input is a connection to the launcher, for both directions. Each message is one line of JSON:

    launcher: {"preload": [MODULE, ...], ...}      kernel: {MODULE: the reason why it could not be imported, ...}
    launcher: the handshake with the keys          kernel: {}, when it serves
"""

from __future__ import annotations

import json
import os
import resource
import uuid
from typing import Any

from . import imports
from .app import KernelApp
from .reseeding import RandomSources


class WaitingApp(KernelApp):
    """An application that binds its sockets when it gets its keys."""

    def parse_command_line(self, _argv: list[str] | None = None) -> None:
        """Do nothing, because the handshake brings the connection file later."""

    def init_connection_file(self) -> None:
        """Do nothing, because there is no connection file yet."""

    def write_connection_file(self, **_: Any) -> None:
        """Do nothing, because the launcher writes the file."""

    def wait(self) -> None:
        """Import modules, format an error, wait for the keys, and bind the sockets."""
        first = _receive()
        problems = {module: problem for module in first["preload"] if (problem := imports.ahead(module))}
        shell: Any = self.shell
        shell.rehearse()
        sources = RandomSources()
        imports.freeze()
        _send(problems)
        handshake = _receive()  # checkpoints are taken here
        for name, value in handshake["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        sources.reseed()
        self.session.session = str(uuid.uuid4())
        self.kernel.ident = str(uuid.uuid4())
        self.connection_file = handshake["connection_file"]
        self.load_connection_info(handshake["connection"])
        self.listen()
        self.log_connection_info()
        self.kernel.record_ports({f"{name}_port": port for name, port in self._ports.items()})
        # Only new values are applied, because the kernel itself has changed some of its variables since its start.
        env = {name: value for name, value in handshake["env"].items() if first["env"].get(name) != value}
        self.kernel.apply_session(env, handshake["cwd"])
        _send({})
        _leave()


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
    """Replace standard input by an empty one, as cells expect it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
