"""What a client comes back to in a sandbox: working directories, terminals and notebooks. It ends with the sandbox."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sessions.guest.attached import Data
from sessions.guest.paths import seen_path
from sessions.model.errors import ProcessNotFound, QuotaExceeded, SessionNotFound
from sessions.sandbox.commands import AttachedCommand, Listener
from sessions.sandbox.sandbox import Sandbox

#: maximum number of chats of a sandbox whose working directories are remembered
CHATS_MAX = 256
#: maximum number of open notebooks of a sandbox
NOTEBOOKS_MAX = 8
#: bytes of a terminal's last output that are kept for the model. Source: Open Terminal 0.14.5
OUTPUT_KEPT = 64 * 1024


@dataclass(eq=False)
class Terminal:
    """A shell on a terminal. Closing its WebSocket ends it."""

    command: AttachedCommand
    #: hears the shell from its beginning, also before a client connects
    listener: Listener
    #: the chat that it belongs to; empty for none
    chat: str
    #: time at which it was made, as clients read it
    created: str
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    #: its last output
    output: bytearray = field(default_factory=bytearray)
    connected: bool = False

    def connect(self) -> None:
        """Note that a client is connected, which it stays until the terminal ends."""
        self.connected = True

    def keep(self, data: Data) -> None:
        """Keep a piece of output, and drop what is too old."""
        self.output += data.content
        del self.output[:-OUTPUT_KEPT]


@dataclass(eq=False)
class Notebook:
    """A notebook whose cells run in a kernel of the sandbox."""

    path: str
    #: name of the session
    session: str
    #: name of the kernel, as the notebook writes it
    kernel: str
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    busy: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be busy for as long as the context lasts."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False


class Desk:
    """What clients come back to in one sandbox."""

    def __init__(self) -> None:
        self._directories: dict[str, str] = {}
        self._terminals: dict[str, Terminal] = {}
        self._notebooks: dict[str, Notebook] = {}
        #: number of notebooks that are being opened
        self._opening = 0

    # -- working directories --------------------------------------------------------------------------------

    def directory(self, chat: str) -> str:
        """Return the working directory of a chat, as processes in the sandbox write it."""
        return self._directories.get(chat, seen_path(""))

    def set_directory(self, chat: str, path: str) -> None:
        """Remember the working directory of a chat. A client that names no chat has none."""
        if not chat:
            return
        self._directories.pop(chat, None)
        self._directories[chat] = path
        if len(self._directories) > CHATS_MAX:
            del self._directories[next(iter(self._directories))]

    # -- terminals ------------------------------------------------------------------------------------------

    def add_terminal(self, terminal: Terminal) -> None:
        """Add a terminal. Those that have ended are forgotten; the sandbox limits the number of all others."""
        self._terminals = {each.id: each for each in [*self._terminals.values(), terminal] if each.command.running}

    def terminals(self, chat: str) -> list[Terminal]:
        """Return the terminals of a chat, oldest first."""
        return [each for each in self._terminals.values() if each.chat == chat and each.command.running]

    def terminal(self, name: str, chat: str) -> Terminal:
        """Return a terminal of a chat by its id.

        Raises:
            ProcessNotFound: when there is no such terminal, or it has ended.
        """
        for terminal in self.terminals(chat):
            if terminal.id == name:
                return terminal
        raise ProcessNotFound(f"Session not found: there is no terminal {name[:64]!r}")

    def connected(self, chat: str) -> Terminal:
        """Return the newest terminal of a chat that a user sees.

        Raises:
            ProcessNotFound: when no user sees one.
        """
        for terminal in reversed(self.terminals(chat)):
            if terminal.connected:
                return terminal
        raise ProcessNotFound("No connected user shell: the user has no terminal open")

    # -- notebooks ------------------------------------------------------------------------------------------

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep room for a notebook that is opened in the block.

        Raises:
            QuotaExceeded: when there are too many.
        """
        if len(self._notebooks) + self._opening >= NOTEBOOKS_MAX:
            raise QuotaExceeded(f"at most {NOTEBOOKS_MAX} notebooks of a sandbox at a time", max=NOTEBOOKS_MAX)
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def add_notebook(self, notebook: Notebook) -> None:
        """Add an open notebook."""
        self._notebooks[notebook.id] = notebook

    def notebook(self, name: str) -> Notebook:
        """Return an open notebook by its id.

        Raises:
            SessionNotFound: when there is no such notebook.
        """
        if (notebook := self._notebooks.get(name)) is None:
            raise SessionNotFound(f"Session not found: there is no open notebook {name[:64]!r}")
        return notebook

    def close_notebook(self, notebook: Notebook) -> None:
        """Forget a notebook."""
        self._notebooks.pop(notebook.id, None)


class Desks:
    """The desks of all sandboxes."""

    def __init__(self) -> None:
        self._all: dict[Sandbox, Desk] = {}

    def of(self, sandbox: Sandbox) -> Desk:
        """Return the desk of a sandbox, made on first use. Desks of ended sandboxes are forgotten then."""
        if sandbox not in self._all:
            self._all = {owner: desk for owner, desk in self._all.items() if not owner.closed}
            self._all[sandbox] = Desk()
        return self._all[sandbox]
