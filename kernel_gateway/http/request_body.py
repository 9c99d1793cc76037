"""Base class of the models for request bodies, and their validation. Commands use the validation, too."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from sessions.model.errors import InvalidRequest

#: maximum reported problems of a body, and characters of each: an answer must not become as large as the request
PROBLEMS_MAX = 20
PROBLEM_MAX = 200
#: maximum problems that an error's message names; its details have the others
NAMED_MAX = 3

Model = TypeVar("Model", bound=BaseModel)


class Body(BaseModel):
    """A request body. It accepts no unknown fields, and converts no value to another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


def validated(model: type[Model], value: object) -> Model:
    """Return `value` as an instance of `model`.

    Raises:
        InvalidRequest: when the value does not fit the model; the message names the first wrong fields.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        if error.error_count() > PROBLEMS_MAX:  # listing them all would block the event loop
            raise InvalidRequest(f"body: {error.error_count()} problems", field="body") from None
        problems = [
            {"field": ".".join(map(str, item["loc"]))[:PROBLEM_MAX] or "body", "problem": _problem(item)[:PROBLEM_MAX]}
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        named = [f"{problem['field']}: {problem['problem']}" for problem in problems[:NAMED_MAX]]
        raise InvalidRequest("; ".join(named), fields=problems) from None


def _problem(item: ErrorDetails) -> str:
    if item["type"] == "model_type":  # pydantic would name our class
        return "Input should be an object"
    return item["msg"].removeprefix("Value error, ")  # what our own checks raise
