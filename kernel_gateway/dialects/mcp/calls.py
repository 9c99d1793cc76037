"""A call of a tool: what its client wants, and how the tool reaches the client meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernel_gateway.dialects.mcp.request_state import Question
from kernel_gateway.dialects.mcp.resent import Sender
from kernel_gateway.dialects.mcp.rpc import Json


class NeedsInput(Exception):
    """The call's answer is a question to the user. The client sends the call again, with the user's answer."""

    def __init__(self, prompt: str, question: Question) -> None:
        """Ask `prompt`, for a question of a run."""
        super().__init__(prompt)
        self.prompt = prompt
        self.question = question


class Call(Protocol):
    """One call of a tool."""

    name: str
    arguments: Json
    tenant: str
    #: who sends the call
    sender: Sender
    #: whether the client can ask its user
    can_ask: bool
    #: whether work for this call must end if its client leaves and does not come back
    ends_with_client: bool
    #: the question that the client answers with this call, and the answer; None as answer: the user gave none
    answered: tuple[Question, str | None] | None
    #: called when the client has the answer
    on_delivered: list[Callable[[], None]]
    #: called when the client cancels the call
    on_cancelled: list[Callable[[], None]]

    async def ask(self, prompt: str, question: Question) -> str | None:
        """Ask the user, and return the answer; None: the user gave none.

        Raises:
            NeedsInput: when the client must send the call again with the answer.
        """


class Toolset(Protocol):
    """Tools that a server offers."""

    #: name of the server
    name: str
    instructions: str

    def listed(self) -> list[Json]:
        """Return the descriptions of all tools."""

    async def call(self, call: Call) -> Json:
        """Run a tool, and return its result. The tool is one of those listed.

        Raises:
            NeedsInput: when the result is a question to the user.
        """
