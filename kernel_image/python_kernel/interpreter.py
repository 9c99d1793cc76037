"""A kernel whose cells another program runs: the interpreter of another language, in a child process.

It has the Python kernel's channels and messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

from . import bundle
from .app import KernelApp, config
from .extras import extras_of
from .kernel import PythonKernel

#: function that publishes an output of a cell, by the type and the content of its message
Tell = Callable[[str, dict[str, Any]], None]
#: maximum seconds to send the last messages
CLOSE = 2.0


class InterpreterKernel(PythonKernel):
    """A kernel whose cells another program runs. It has no debugger and no subshells, because cells run one by one."""

    implementation_version = "1"
    help_links: Any = ()

    @property
    def language(self) -> dict[str, str]:
        """`language_info` of the kernel. Source: the Jupyter protocol, "Kernel info"."""
        raise NotImplementedError

    def run_code(self, code: str, tell: Tell, env: Mapping[str, str]) -> dict[str, Any] | None:
        """Run the code of a cell.

        Args:
            code: code of the cell.
            tell: publishes the outputs of the cell.
            env: environment variables for this cell only.

        Returns:
            content of the error's message, or None if there was no error.
        """
        raise NotImplementedError

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The kernel's description."""
        info: dict[str, Any] = super().kernel_info
        return info | {"language_info": self.language, "supported_features": []}

    async def create_subshell_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Refuse a subshell."""
        refusal = {"status": "error", "ename": "NotSupported", "evalue": "there are no subshells", "traceback": []}
        self.session.send(stream, "create_subshell_reply", refusal, parent, ident)

    async def run_cell(  # the arguments are ipykernel's
        self,
        code: str,
        silent: bool,  # noqa: FBT001
        store_history: bool = True,  # noqa: FBT001, FBT002
        user_expressions: object = None,  # noqa: ARG002
        allow_stdin: bool = False,  # noqa: FBT001, FBT002
        **_: Any,
    ) -> dict[str, Any]:
        """Run a cell."""
        self._allow_stdin = allow_stdin
        reply: dict[str, Any] = {"execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        env = extras_of(self.get_parent("shell")).get("env", {})
        error = self.run_code(code, _nowhere if silent else self._tell, env)
        if store_history and not silent:
            shell: Any = self.shell
            shell.history_manager.store_inputs(self.execution_count, code)
            shell.execution_count += 1
        if error is None:
            return reply | {"status": "ok"}
        if not silent:
            self._tell("error", error)
        return reply | error | {"status": "error"}

    def _tell(self, kind: str, content: dict[str, Any]) -> None:
        self.send_response(self.iopub_socket, kind, content, ident=self._topic(kind))

    def end(self, code: int) -> NoReturn:
        """End the kernel as its interpreter has ended, because the state of the session is lost.

        Args:
            code: return code of the interpreter's process: its exit status, or a negative number of a signal.
        """
        # All output is sent first. A client that does not read must not prevent the end.
        closing = threading.Thread(target=self.parent.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE)
        os._exit(code if code >= 0 else 128 - code)  # as a shell reports a signal

    async def do_complete(self, _code: str, cursor_pos: int) -> dict[str, Any]:
        """Answer that there is nothing to complete."""
        return {"status": "ok", "matches": [], "cursor_start": cursor_pos, "cursor_end": cursor_pos, "metadata": {}}

    async def do_is_complete(self, _code: str) -> dict[str, Any]:
        """Answer that it is not known whether the code is complete."""
        return {"status": "unknown"}

    async def do_inspect(self, *_args: Any, **_options: Any) -> dict[str, Any]:
        """Answer that there is no information."""
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}


@cache
def version(program: str) -> str:
    """Return the version of an interpreter, by the command in `kernel.json` beside the kernel's program."""
    with open(os.path.join(os.path.dirname(os.path.abspath(program)), "kernel.json")) as file:
        asked = json.load(file)["metadata"]["kernel_gateway"]["version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - the image's own


def _nowhere(_kind: str, _content: dict[str, Any]) -> None:
    """Publish nothing."""


def start(kernel: type[InterpreterKernel], arguments: list[str]) -> None:
    """Run a kernel until its end.

    Args:
        kernel: class of the kernel.
        arguments: arguments of its program: `-f CONNECTION_FILE`, or `-f -` to wait for the connection.
    """
    kind = KernelApp
    if arguments == ["-f", "-"]:
        from .waiting import WaitingApp  # noqa: PLC0415 - few kernels wait

        kind = WaitingApp
    app = kind.instance(config=config(kernel))
    app.initialize()
    bundle.release()
    app.wait()
    app.start()
