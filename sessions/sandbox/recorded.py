"""Commands whose output is kept, for clients that start a command and ask later what it has said."""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections import deque
from dataclasses import dataclass

from sessions.guest.attached import Data, Ended, Program
from sessions.guest.processes import kill_process, signal_process
from sessions.model.errors import ProcessNotFound, SessionError
from sessions.model.tasks import spawn
from sessions.sandbox.commands import AttachedCommand, CommandHost, Commands, Listener

#: maximum characters and pieces of a command's output that are kept; older ones are dropped
OUTPUT_KEPT = 256 * 1024
PIECES_KEPT = 4096
#: maximum number of a sandbox's ended commands that are kept, and the seconds for which each is kept
ENDED_KEPT = 16
ENDED_SECONDS = 300.0
#: maximum seconds for the end of a command that was killed
KILL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of output."""

    #: `stdout`, `stderr` or `pty`
    stream: str
    text: str


class RecordedCommand:
    """One command, its output and its end."""

    def __init__(self, command: AttachedCommand, listener: Listener, text: str, cwd: str, owner: str) -> None:
        """Begin to record a command that runs.

        Args:
            command: the command.
            listener: hears the command from its beginning.
            text: the command as its client wrote it.
            cwd: the directory in which it began, as its client wrote it.
            owner: name of the client that may ask for it.
        """
        self.id = secrets.token_hex(6)
        self.text = text
        self.cwd = cwd
        self.owner = owner
        self.command = command
        #: how it ended. None means that it runs, or that it did not run to its own end.
        self.end: Ended | None = None
        #: whether a client has killed it
        self.killed = False
        #: time of its end by the event loop's clock; None while it runs
        self.ended_at: float | None = None
        #: number of pieces that were dropped
        self.dropped = 0
        self._pieces: deque[Piece] = deque()
        self._kept = 0
        self._recording = spawn(self._record(listener), "record of a command")

    @property
    def running(self) -> bool:
        """Whether it runs. When it has ended, its whole output is recorded."""
        return self.ended_at is None

    @property
    def count(self) -> int:
        """The number of pieces so far, also of those that were dropped."""
        return self.dropped + len(self._pieces)

    def since(self, offset: int) -> list[Piece]:
        """Return the kept pieces from a number on."""
        return list(self._pieces)[max(0, offset - self.dropped) :]

    async def wait(self, seconds: float) -> None:
        """Wait for the end of the command, but at most for some seconds."""
        await asyncio.wait({self._recording}, timeout=seconds)

    async def _record(self, listener: Listener) -> None:
        decoders: dict[str, codecs.IncrementalDecoder] = {}
        try:
            async for event in listener:
                if isinstance(event, Ended):
                    self.end = event
                    continue
                if event.stream not in decoders:
                    decoders[event.stream] = codecs.getincrementaldecoder("utf-8")("replace")
                self._keep(event, decoders[event.stream])
        finally:
            self.command.leave(listener)
            self.ended_at = asyncio.get_running_loop().time()

    def _keep(self, data: Data, decoder: codecs.IncrementalDecoder) -> None:
        if text := decoder.decode(data.content):
            self._pieces.append(Piece(data.stream, text))
            self._kept += len(text)
        while self._kept > OUTPUT_KEPT or len(self._pieces) > PIECES_KEPT:
            self._kept -= len(self._pieces.popleft().text)
            self.dropped += 1


class RecordedCommands:
    """The recorded commands of one sandbox."""

    def __init__(self, host: CommandHost, commands: Commands) -> None:
        """Begin without recorded commands.

        Args:
            host: the sandbox.
            commands: the commands of the sandbox.
        """
        self._host = host
        self._commands = commands
        #: oldest first
        self._all: dict[str, RecordedCommand] = {}

    async def start(self, program: Program, text: str, cwd: str, owner: str) -> RecordedCommand:
        """Start a command and record it. Arguments and errors: see `RecordedCommand` and `Commands.start`."""
        recorded = RecordedCommand(*await self._commands.start(program, None), text, cwd, owner)
        self._all[recorded.id] = recorded
        self._forget()
        return recorded

    def of(self, owner: str) -> list[RecordedCommand]:
        """Return the commands of a client, oldest first."""
        self._forget()
        return [recorded for recorded in self._all.values() if recorded.owner == owner]

    def find(self, name: str, owner: str) -> RecordedCommand:
        """Return a command of a client by its id.

        Raises:
            ProcessNotFound: when there is no such command, or its end is too long ago.
        """
        self._forget()
        recorded = self._all.get(name)
        if recorded is None or recorded.owner != owner:
            raise ProcessNotFound(f"there is no command {name[:64]!r}")
        return recorded

    async def kill(self, recorded: RecordedCommand, number: int | None) -> None:
        """End a command, and wait for its end.

        Args:
            recorded: the command.
            number: the only signal that it gets. None means SIGTERM, and SIGKILL if that does not end it.
        """
        if not recorded.running:
            return
        recorded.killed = True
        try:
            if number is None:
                await kill_process(self._host, recorded.command.pid)
            else:
                await signal_process(self._host, recorded.command.pid, number)
        except ProcessNotFound:
            pass  # it has ended meanwhile
        except SessionError:
            recorded.killed = False
            raise
        await recorded.wait(KILL_SECONDS)

    def _forget(self) -> None:
        """Forget commands that ended too long ago, and the oldest if there are too many."""
        now = asyncio.get_running_loop().time()
        ended = [each for each in self._all.values() if each.ended_at is not None]
        for number, each in enumerate(reversed(ended)):
            if number >= ENDED_KEPT or now - (each.ended_at or now) > ENDED_SECONDS:
                del self._all[each.id]

    def clear(self) -> None:
        """Forget all commands, because the sandbox has ended."""
        self._all.clear()
