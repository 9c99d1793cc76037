"""A call of a tool: what its client wants, and how the tool reaches the client meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernel_gateway.dialects.mcp.request_state import Question
from kernel_gateway.dialects.mcp.resent import Sender
from kernel_gateway.dialects.mcp.rpc import Json


class NeedsInput(Exception):
    """The call's answer is requests to the client. The client sends the call again, with its answers to them."""

    def __init__(self, requests: dict[str, Json], question: Question) -> None:
        """Ask for a question of a run.

        Args:
            requests: requests to the client, each with its name, as in `Call.ask`.
            question: the question.
        """
        super().__init__(", ".join(requests))
        self.requests = requests
        self.question = question


class Call(Protocol):
    """One call of a tool."""

    name: str
    arguments: Json
    tenant: str
    #: who sends the call
    sender: Sender
    #: what the client says that it can do; of a legacy client only `elicitation` is known
    capabilities: Json
    #: whether work for this call must end if its client leaves and does not come back
    ends_with_client: bool
    #: the question that the client answers with this call, and the results by the names of the requests
    answered: tuple[Question, Json] | None
    #: called when the client has the answer
    on_delivered: list[Callable[[], None]]
    #: called when the client cancels the call
    on_cancelled: list[Callable[[], None]]

    async def ask(self, requests: dict[str, Json], question: Question) -> Json:
        """Send requests to the client, and return its results by the requests' names.

        Args:
            requests: method and parameters of each request, for example `elicitation/create`, which asks the user.
            question: the question of a run that they are for.

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
