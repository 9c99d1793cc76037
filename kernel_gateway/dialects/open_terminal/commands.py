"""`/execute`: commands that run while their client asks from time to time what they have said."""

from __future__ import annotations

import codecs
import re
import signal
from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.open_terminal.base import TerminalHandler
from kernel_gateway.dialects.open_terminal.models import ExecRequest, InputRequest, KillQuery, StatusQuery, TailQuery
from sessions.guest.attached import Program
from sessions.model.errors import InvalidRequest, ProcessNotFound
from sessions.model.values import valid_env
from sessions.sandbox.recorded import RecordedCommand
from sessions.sandbox.sandbox import Sandbox

#: columns and rows of a command's terminal
SIZE = (80, 24)
#: escape sequences of a text that models write instead of the characters
_ESCAPE = re.compile(r"\\(?:[abfnrtv\\'\"]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{1,3})")


def told(recorded: RecordedCommand) -> dict[str, Any]:
    """Return a command as clients see it."""
    status = "running" if recorded.running else "killed" if recorded.killed else "done"
    return {
        "id": recorded.id,
        "command": recorded.text,
        "status": status,
        "exit_code": recorded.end.code if recorded.end else None,
        "log_path": None,
    }


def with_output(recorded: RecordedCommand, offset: int, tail: int | None) -> dict[str, Any]:
    """Return a command with its output from a piece on, at most the last `tail` pieces."""
    pieces = recorded.since(offset)
    shown = pieces[-tail:] if tail else pieces
    model = told(recorded) | {
        "output": [{"type": "output" if each.stream == "pty" else each.stream, "data": each.text} for each in shown],
        "next_offset": recorded.count,
        "truncated": offset < recorded.dropped or len(shown) < len(pieces),
    }
    if recorded.end is not None and recorded.end.timed_out:
        model["error"] = "the command ran longer than the gateway allows, and was ended (SB005)"
    elif not recorded.running and recorded.command.failure is not None:
        model["error"] = f"{recorded.command.failure.message} ({recorded.command.failure.code})"
    return model


def decoded(text: str) -> str:
    r"""Return input with escape sequences such as `\n` and `\x03` replaced by their characters."""
    return _ESCAPE.sub(lambda found: codecs.decode(found[0], "unicode_escape"), text)


class ExecuteHandler(TerminalHandler):
    """`/execute`."""

    async def get(self) -> None:
        """List the chat's commands, running or not."""
        self.finish_json([told(recorded) for recorded in (await self.sandbox()).recorded.of(self.chat)])

    async def post(self) -> None:
        """Start a command, and wait for its end for as long as the client wants."""
        query, body = self.query(TailQuery), self.body(ExecRequest)
        await self.run_until_client_leaves(self._run(query, body))

    async def _run(self, query: TailQuery, body: ExecRequest) -> None:
        sandbox = await self.sandbox()
        cwd = body.cwd or self.desk(sandbox).directory(self.chat)
        env = valid_env(body.env or {})
        program = Program(("/bin/bash", "-c", body.command), cwd, env, takes_input=True, size=SIZE)
        recorded = await sandbox.recorded.start(program, body.command, cwd, self.chat)
        if query.wait:
            await recorded.wait(query.wait)
        self.finish_json(with_output(recorded, 0, query.tail) | {"cwd": cwd})


class _OneHandler(TerminalHandler):
    """A request about one command."""

    async def find(self, name: str) -> tuple[Sandbox, RecordedCommand]:
        """Return the sandbox, and the chat's command with this id.

        Raises:
            ProcessNotFound: when there is no such command.
        """
        sandbox = await self.sandbox()
        return sandbox, sandbox.recorded.find(name, self.chat)


class StatusHandler(_OneHandler):
    """`/execute/{id}/status`."""

    async def get(self, name: str) -> None:
        """Return the status and the new output of a command."""
        await self.run_until_client_leaves(self._tell(name, self.query(StatusQuery)))

    async def _tell(self, name: str, query: StatusQuery) -> None:
        _, recorded = await self.find(name)
        if query.wait:
            await recorded.wait(query.wait)
        self.finish_json(with_output(recorded, query.offset, query.tail))


class InputHandler(_OneHandler):
    """`/execute/{id}/input`."""

    async def post(self, name: str) -> None:
        """Write input to a command."""
        await self.run_until_client_leaves(self._write(name, self.body(InputRequest)))

    async def _write(self, name: str, body: InputRequest) -> None:
        sandbox, recorded = await self.find(name)
        if not recorded.running:
            raise InvalidRequest("Process has already exited", field="input")
        content = decoded(body.input).encode("utf-8", "replace")
        sandbox.charge_upload(len(content))
        try:
            await recorded.command.write(content)
        except ProcessNotFound:
            raise InvalidRequest("Process has already exited", field="input") from None
        self.finish_json({"status": "ok"})


class ProcessHandler(_OneHandler):
    """`/execute/{id}`."""

    urgent = frozenset({"DELETE"})

    async def delete(self, name: str) -> None:
        """End a command."""
        force = self.query(KillQuery).force
        sandbox, recorded = await self.find(name)
        await sandbox.recorded.kill(recorded, signal.SIGKILL if force else None)
        self.set_status(HTTPStatus.OK)
        self.finish_json({"status": "killed"})
