"""Makes an OpenAPI 3.1 document from a dialect's table of operations and its pydantic models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"
REQUEST_ID = {"X-Request-Id": "1 to 64 of A-Z a-z 0-9 . _ -; returned, and written to the log"}
TEXT = {"type": "string"}
BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    status: HTTPStatus = HTTPStatus.OK
    #: content by further media types, of the answer or, for PUT, of the body
    media: dict[str, Any] = field(default_factory=dict)
    #: schemas of the query's parameters, by name
    query: dict[str, Any] = field(default_factory=dict)
    #: descriptions of the request's headers, by name
    headers: dict[str, str] = field(default_factory=dict)
    #: further statuses of an answer that is no failure
    others: tuple[HTTPStatus, ...] = ()
    #: answers of another form that are no failure, by status
    further: dict[HTTPStatus, type[BaseModel]] = field(default_factory=dict)
    public: bool = False
    #: models that `media` or `websocket` refer to
    models: tuple[type[BaseModel], ...] = ()
    #: schemas of a WebSocket's messages: those that the client can `send`, and those that it can `receive`
    websocket: dict[str, Any] = field(default_factory=dict)


def ref(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a value that has the form of one of the models."""
    refs = [{"$ref": REF.format(model=model.__name__)} for model in models]
    return refs[0] if len(refs) == 1 else {"oneOf": refs}


def document(
    title: str,
    version: str,
    operations: list[Operation],
    failure: type[BaseModel],
    examples: Mapping[type[BaseModel], Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the whole OpenAPI document.

    Args:
        title: name of the API.
        version: version of the gateway.
        operations: all operations.
        failure: model of the body of every failure.
        examples: an example of each model that has one.
    """
    models = {failure}
    for operation in operations:
        models |= {*filter(None, (operation.answer, operation.body)), *operation.models, *operation.further.values()}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=REF)
    for model, example in examples.items():
        schemas["$defs"][model.__name__]["examples"] = [example]
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, failure)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _described(operation: Operation, failure: type[BaseModel]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    parameters += [
        {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
        for name, description in (operation.headers | REQUEST_ID).items()
    ]
    answered = operation.media if operation.method != "PUT" else {}
    content = (_json(operation.answer) if operation.answer else {}) | answered
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "parameters": parameters,
        "responses": {
            str(status.value): {"description": status.phrase} | ({"content": content} if content else {})
            for status in (operation.status, *operation.others)
        }
        | {
            str(status.value): {"description": status.phrase, "content": _json(answer)}
            for status, answer in operation.further.items()
        }
        | {
            "default": {"description": "The request failed", "content": _json(failure)},
        },
    }
    if operation.websocket:
        described["x-websocket"] = operation.websocket
    if operation.public:
        described["security"] = []
    if operation.body or operation.method == "PUT":
        described["requestBody"] = {"content": _json(operation.body) if operation.body else operation.media}
    return described


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": ref(model)}}


def _identifier(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path.removeprefix("/v1"))
    return "_".join([operation.method.lower(), *words])
