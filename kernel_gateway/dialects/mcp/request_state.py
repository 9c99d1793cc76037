"""What a modern client sends back when it answers `input()`: sealed, so that nobody can forge or move it.

The seal binds it to the tenant, to the call and to a time. A question can be answered once, because the run that asked
it then waits for no answer any more.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from dataclasses import dataclass

import orjson

from kernel_gateway.dialects.mcp.rpc import INVALID_PARAMS, Json, RpcError
from sessions.model import exact_json

#: seconds for which a question can be answered; a cell ends earlier, at its deadline
LIFETIME = 3600
#: session, run, question, end of the lifetime, seal
_FORM = re.compile(r"([A-Za-z0-9._-]{1,64})~([0-9a-f]{32})~([0-9]{1,9})~([0-9]{1,12})~([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a run."""

    session: str
    run: str
    #: number of the run's event that asked it
    number: int


class Seals:
    """Seals questions with the gateway's secret, and opens them again."""

    def __init__(self, secret: str) -> None:
        """Derive a key of its own from a secret of the gateway."""
        self._key = hashlib.sha256(b"mcp request state\0" + secret.encode()).digest()

    def seal(self, question: Question, tenant: str, call: str) -> str:
        """Return the text that the client sends back.

        Args:
            question: the question.
            tenant: tenant of the client.
            call: digest of the call, as `digest_of` makes it.
        """
        until = int(time.time()) + LIFETIME
        told = f"{question.session}~{question.run}~{question.number}~{until}"
        return f"{told}~{self._mac(told, tenant, call)}"

    def open(self, sealed: object, tenant: str, call: str) -> Question:
        """Return the question that a text stands for.

        Raises:
            RpcError: when the text was not made for this tenant and this call, or is too old.
        """
        found = _FORM.fullmatch(sealed) if isinstance(sealed, str) else None
        if found is not None:
            session, run, number, until, seal = found.groups()
            told = f"{session}~{run}~{number}~{until}"
            if hmac.compare_digest(seal, self._mac(told, tenant, call)) and int(until) >= time.time():
                return Question(session, run, int(number))
        raise RpcError(INVALID_PARAMS, "requestState is not valid for this call, or too old: send the call without it")

    def _mac(self, told: str, tenant: str, call: str) -> str:
        return hmac.new(self._key, f"{tenant}\0{call}\0{told}".encode(), hashlib.sha256).hexdigest()


def digest_of(name: str, arguments: Json) -> str:
    """Return a digest that differs for different calls of tools.

    Raises:
        RpcError: when the arguments are nested too deeply.
    """
    try:
        told = exact_json.dumps(sorted(arguments.items()))
    except orjson.JSONEncodeError as error:
        raise RpcError(INVALID_PARAMS, f"the arguments cannot be used: {error}") from None
    return hashlib.sha256(name.encode() + b"\0" + told).hexdigest()
