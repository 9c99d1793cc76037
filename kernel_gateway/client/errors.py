"""What can go wrong: the gateway refuses a call, or does not answer it."""

from __future__ import annotations

import json
from typing import Any


class ClientError(Exception):
    """Base of all errors of this library."""


class Unreachable(ClientError):
    """No gateway answers at the address, or a connection broke off and could not be made again."""


class GatewayError(ClientError):
    """The gateway refused a call.

    Attributes:
        code: code of the error, which does not change: `SB…`.
        message: what happened.
        resolution: what to do.
        details: facts about it, by name.
        status: HTTP status; None: the error ended a stream.
    """

    def __init__(self, error: dict[str, Any], status: int | None = None) -> None:
        """Take an error as the API describes it."""
        self.code = str(error["code"])
        self.message = str(error["message"])
        self.resolution = str(error["resolution"])
        self.details: dict[str, Any] = error.get("details") or {}
        self.status = status
        super().__init__(f"{self.code}: {self.message} - {self.resolution}")

    @classmethod
    def of_answer(cls, content: bytes, status: int) -> GatewayError | None:
        """Return the error in an answer. None means that the answer is not a gateway's."""
        try:
            return cls(json.loads(content)["error"], status)
        except (ValueError, KeyError, TypeError):
            return None
