"""The prompt of `kernel-gateway console`: it has a history, and in a session of Python completes what is written."""

from __future__ import annotations

import codeop
import json
import warnings
from collections.abc import Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory

from kernel_gateway.client import ClientError, Session
from kernel_gateway.client_config import Client

#: prints the kernel's answer to a complete_request, as JSON
COMPLETE = (
    "print(__import__('json').dumps({{name: value for name, value in "
    "get_ipython().kernel.do_complete({code!r}, {position}).items() if name != 'metadata'}}))"
)
#: seconds that a completion may take
COMPLETE_TIMEOUT = 5.0


def prompt_of(python: Session | None, client: Client) -> PromptSession[str]:
    """Return the prompt; for a session of Python it knows when a cell is complete, and completes names."""
    directory = client.state_dir.expanduser()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return PromptSession(
        history=FileHistory(directory / "console-history"),
        completer=None if python is None else KernelCompleter(python),
        complete_while_typing=False,
        complete_in_thread=True,
        multiline=Condition(lambda: python is not None and incomplete(get_app().current_buffer.text)),
    )


def incomplete(code: str) -> bool:
    """Return whether Python code needs further lines. An empty line ends a block."""
    last = code.rpartition("\n")[2]
    if "\n" in code and not last.strip():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel shows them when the code runs
            return codeop.compile_command(code, symbol="exec") is None or last[:1].isspace()
    except (SyntaxError, ValueError, OverflowError):  # the kernel says what is wrong; or it is a magic
        return False


class KernelCompleter(Completer):
    """Asks the kernel what may stand at the cursor."""

    def __init__(self, session: Session) -> None:
        """Take the session, which is idle while a line is written."""
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Yield what may stand at the cursor."""
        code = COMPLETE.format(code=document.text, position=document.cursor_position)
        try:
            answer = json.loads(self._session.run(code, store_history=False, timeout=COMPLETE_TIMEOUT).text)
            matches, begin = answer["matches"], answer["cursor_start"] - document.cursor_position
        except (ClientError, ValueError):  # a kernel that is asked in vain completes nothing
            return
        for match in matches:
            yield Completion(match, start_position=begin)
