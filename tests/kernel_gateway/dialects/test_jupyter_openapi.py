"""The description of the Jupyter dialect is valid, complete, and served under the names that its clients ask for."""

from __future__ import annotations

import re
from typing import cast

import pytest
import yaml
from openapi_spec_validator import OpenAPIV31SpecValidator

from kernel_gateway.dialects import jupyter
from kernel_gateway.dialects.jupyter.base import UnsupportedHandler
from kernel_gateway.dialects.jupyter.openapi import OPERATIONS, description
from kernel_gateway.gateway import Gateway as Parts
from kernel_gateway.http.handlers import BaseHandler
from tests.gateways import Gateway
from tests.kernel_gateway.calls import process_only
from tests.kernel_gateway.http.test_openapi import implemented

ROUTES = [(path, cast("type[BaseHandler]", handler)) for path, handler, _ in jupyter.routes(cast("Parts", None))]


def serving(path: str) -> tuple[str, type[BaseHandler]]:
    """Return the first route that matches a path of the description."""
    concrete = re.sub(r"{\w+}", "x", path)
    return next((pattern, handler) for pattern, handler in ROUTES if re.fullmatch(pattern, concrete))


def test_the_description_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(description()).iter_errors()] == []


def test_exactly_the_methods_of_all_routes_are_described() -> None:
    described = {(operation.method, serving(operation.path)[0]) for operation in OPERATIONS}
    routes = [(pattern, handler) for pattern, handler in ROUTES if handler is not UnsupportedHandler]
    assert described == {(method, pattern) for pattern, handler in routes for method in implemented(handler)}


@process_only
@pytest.mark.parametrize("name", ["swagger.json", "swagger.yaml", "spec.yaml"])
def test_the_description_is_served_without_a_key(gateway: Gateway, name: str) -> None:
    served = gateway.call("GET", f"/api/{name}", tenant=None)
    assert (served.status_code, served.headers["Content-Type"]) == (200, f"application/{name.partition('.')[2]}")
    assert yaml.safe_load(served.text) == description()
