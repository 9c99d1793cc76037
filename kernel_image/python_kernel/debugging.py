"""ipykernel's debugger, with a port that debugpy itself chooses.

ipykernel looks for a free port and releases it, and debugpy takes it some time later. If another program took it
meanwhile, ipykernel did not say why it refused, and refused each later attempt, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import debugpy  # noqa: T100 - this module is the debugger
import zmq
from ipykernel import debugger
from ipykernel.compiler import get_tmp_directory

#: code of a cell that lets debugpy listen, whatever names the user has taken
_LISTEN = "__import__('IPython').get_ipython().kernel.debugger.listen()"


class Debugger(debugger.Debugger):
    """ipykernel's debugger, which is loaded by the first debug request."""

    debugpy_client: Any
    session: Any
    shell_socket: Any
    #: why debugpy does not listen
    problem = ""

    def start(self) -> bool:
        """Let debugpy listen, and connect to it. Return whether that has succeeded."""
        if not self.debugpy_initialized:
            Path(get_tmp_directory()).mkdir(mode=0o700, parents=True, exist_ok=True)
            # debugpy must be started in the thread that runs cells.
            cell = {"code": _LISTEN, "silent": True}
            identity = self.shell_socket.getsockopt(zmq.ROUTING_ID)
            self.session.send(self.shell_socket, "execute_request", cell, None, identity)
            told = self.session.recv(self.shell_socket, mode=0)[1]["content"]
            self.debugpy_initialized = told["status"] == "ok"
            self.problem = f"{told.get('ename', told['status'])}: {told.get('evalue', '')}"
        return self.debugpy_initialized and super().start()

    def listen(self) -> None:
        """Let debugpy listen. Called in the thread that runs cells."""
        _, self.debugpy_client.debugpy_port = debugpy.listen((self.debugpy_client.debugpy_host, 0))  # noqa: T100 - as above

    async def process_request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a debug request. If the debugger does not start, the answer says why."""
        reply: dict[str, Any] = await super().process_request(message)
        if message["command"] == "initialize" and not self.is_started:
            reply["message"] = self.problem
        return reply
