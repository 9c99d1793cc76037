"""The form in which a client asks its user what a cell asks with `input()`. Pure."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.mcp.rpc import Json

#: what a form asks of the user
ANSWER_FORM: Json = {
    "type": "object",
    "properties": {"answer": {"type": "string", "title": "Answer"}},
    "required": ["answer"],
}
#: name of the request that shows the form
NAME = "answer"


def can_ask(capabilities: Any) -> bool:
    """Return whether a client with these capabilities shows forms to its user."""
    asks = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(asks, dict) and (not asks or "form" in asks)


def question(prompt: str) -> dict[str, Json]:
    """Return the request that shows a form to the user, by its name."""
    message = prompt.strip() or "The code asks for input."
    form = {"mode": "form", "message": message, "requestedSchema": ANSWER_FORM}
    return {NAME: {"method": "elicitation/create", "params": form}}


def is_answer(results: Json) -> bool:
    """Return whether the user has seen the form, and answered or refused. A missing answer is asked for again."""
    match results.get(NAME):
        case {"action": str()}:
            return True
    return False


def given(results: Json) -> str | None:
    """Return what the user has answered in the form; None: nothing."""
    match results.get(NAME):
        case {"action": "accept", "content": {"answer": str() as text}}:
            return text
    return None
