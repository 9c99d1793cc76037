"""JSON-RPC 2.0 as MCP uses it: requests, results, and errors with their HTTP status. Pure.

Source: the MCP specification, revisions 2025-03-26 to 2026-07-28.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
NO_METHOD = -32601
INVALID_PARAMS = -32602
INTERNAL = -32603
HEADER_MISMATCH = -32020
VERSION_NOT_SERVED = -32022

#: maximum characters of the id of a message, which is kept with the call
ID_MAX = 256

#: a JSON object
Json = dict[str, Any]


class RpcError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(
        self, code: int, message: str, data: Json | None = None, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> None:
        """Describe the error.

        Args:
            code: code of the error.
            message: what is wrong.
            data: further facts.
            status: HTTP status of the answer, in the modern era.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status

    def as_dict(self) -> Json:
        """Return the member `error` of the answer."""
        shown: Json = {"code": self.code, "message": self.message}
        return shown if self.data is None else shown | {"data": self.data}


@dataclass(frozen=True, slots=True)
class Message:
    """A request, or a notification (without id), or a client's response to a request of the server."""

    method: str
    params: Json
    #: None for a notification
    id: str | int | None
    #: a client's response to a question of the server; `method` is empty then
    response: Json | None = None

    @classmethod
    def of(cls, value: object) -> Message:
        """Read one message.

        Raises:
            RpcError: when the value is no JSON-RPC message.
        """
        if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
            raise RpcError(INVALID_REQUEST, "the body is no JSON-RPC 2.0 message")
        number, method, params = value.get("id"), value.get("method"), value.get("params", {})
        if "id" in value and (isinstance(number, bool) or not isinstance(number, str | int)):
            raise RpcError(INVALID_REQUEST, "the id must be a string or a whole number")
        if isinstance(number, str) and len(number) > ID_MAX:
            raise RpcError(INVALID_REQUEST, f"the id has more than {ID_MAX} characters")
        if method is None and number is not None and {"result", "error"} & value.keys():
            return cls("", {}, number, response=value)
        if not isinstance(method, str):
            raise RpcError(INVALID_REQUEST, "the method must be a string")
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "params must be an object")
        return cls(method, params, number)

    @property
    def meta(self) -> Json:
        """The member `_meta` of the parameters; {} without one."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


def answer(number: str | int | None, result: Json) -> Json:
    """Return the response to a request."""
    return {"jsonrpc": "2.0", "id": number, "result": result}


def refusal(number: str | int | None, error: RpcError) -> Json:
    """Return the response to a request that has failed."""
    return {"jsonrpc": "2.0", "id": number, "error": error.as_dict()}


def notification(method: str, params: Json) -> Json:
    """Return a notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params}
