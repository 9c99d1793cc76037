"""Models of the requests, and the problems of invalid requests in FastAPI's format."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kernel_gateway.config import Settings
from kernel_gateway.http.request_body import PROBLEM_MAX, PROBLEMS_MAX
from kernel_gateway.setting_types import Bytes
from sessions.model import bounded_json
from sessions.model.errors import InvalidRequest
from sessions.programs.program import Program

#: language name of these clients → our language
LANGUAGES = {
    "python": "python",
    "python3": "python",
    "nodejs": "javascript",
    "node": "javascript",
    "javascript": "javascript",
    "js": "javascript",
}


def _decoded(code: str) -> str:
    try:
        return base64.b64decode(code, validate=True).decode()
    except ValueError:
        raise ValueError("must be base64 of UTF-8 text") from None


class Body(BaseModel):
    """A program to run. Unknown fields are ignored, as RAGFlow's executor does."""

    model_config = ConfigDict(extra="ignore")

    code_b64: Annotated[str, AfterValidator(_decoded)]
    language: str = "python"
    #: null means no arguments; RAGFlow's Go client sends it
    arguments: dict[str, Any] | None = None

    def program(self, _settings: Settings) -> Program:
        """Return the program, which may run as long as the gateway's `execute_timeout`."""
        return Program(self.code_b64, LANGUAGES[self.language], self.arguments or {})


class Run(Body):
    """The body of `/run`."""

    language: Literal["python", "nodejs"] = "python"


class Execute(Body):
    """The body of `/execute`."""

    language: Literal["python", "python3", "nodejs", "node", "javascript", "js"] = "python"
    #: seconds
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_memory: Bytes | None = None

    def program(self, settings: Settings) -> Program:
        """Return the program. A requested limit above the gateway's maximum is lowered to the maximum."""
        return Program(
            self.code_b64,
            LANGUAGES[self.language],
            self.arguments or {},
            timeout=min(self.timeout or settings.execute_timeout, settings.max_execute_timeout),
            memory=None if self.max_memory is None else min(self.max_memory, settings.memory),
        )


B = TypeVar("B", bound=Body)
Problem = dict[str, Any]


def read(model: type[B], body: bytes) -> B:
    """Parse a body as `model`.

    Raises:
        InvalidRequest: when the body is invalid; `problems` in its details has FastAPI's format.
    """
    try:
        bounded_json.check(body)
        return model.model_validate_json(body)
    except bounded_json.TooManyValues as error:
        told = {"type": "json_invalid", "loc": ["body"], "msg": error.msg, "input": None}
        raise InvalidRequest(error.msg, problems=[told]) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[:PROBLEMS_MAX]
        problems = [
            {
                "type": item["type"],
                "loc": ["body", *item["loc"]],
                "msg": item["msg"][:PROBLEM_MAX],
                "input": _shown(item["input"]),
            }
            for item in found
        ]
        raise InvalidRequest(found[0]["msg"], problems=problems) from None


def problem(failure: InvalidRequest) -> Problem:
    """Return an error of the gateway itself as a problem in FastAPI's format."""
    loc = ["body", failure.details["field"]] if "field" in failure.details else ["body"]
    return {"type": "value_error", "loc": loc, "msg": failure.message, "input": None}


def _shown(value: object) -> object:
    """Return the submitted value. A long value is cut, so that the answer does not become as large as the request."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return orjson.Fragment(text) if len(text) <= PROBLEM_MAX else f"{text[:PROBLEM_MAX]}…"
