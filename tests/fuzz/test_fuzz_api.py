"""Requests made from the API's own description: no request makes the gateway fail, and answers are as described."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from kernel_gateway.dialects import native
from tests.fuzz.conftest import FUZZED
from tests.fuzz.values import harmless
from tests.gateways import KEYS, Gateway

pytestmark = pytest.mark.full

#: requests of each operation
EXAMPLES = 60
#: statuses of refusals that say that the gateway cannot serve now: too many sessions, or a session that ends
BUSY = {503}
#: an operation that is no request and answer, and those of admins, which another test shows to be closed
SCHEMA = schemathesis.openapi.from_dict(native.openapi()).exclude(path_regex="/stream$")
SCHEMA.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
Case = schemathesis.Case[Any]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def aimed(case: Case) -> Case:
    """Let half of the requests meet the session that exists; make code harmless, because it runs on this machine."""
    parameters = case.path_parameters or {}
    if "name" in parameters and zlib.crc32(str(parameters["name"]).encode("utf-8", "replace")) % 2:
        parameters["name"] = FUZZED
    if isinstance(case.body, dict) and "code" in case.body:
        case.body |= {"code": harmless(case.body["code"])}
    return case


@pytest.fixture(scope="session")
def admin(serving: Gateway) -> str:
    """The key of an admin."""
    return serving.admin_key()


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: Case, fuzzed: Gateway, admin: str) -> None:
    key = admin if "/admin/" in case.path else KEYS["alice"]
    response = aimed(case).call(base_url=fuzzed.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    checks: list[Any] = CHECKS[1:] if response.status_code in BUSY else CHECKS
    case.validate_response(response, checks=checks)


def test_an_answer_that_is_not_as_described_is_noticed(fuzzed: Gateway) -> None:
    """The control: the same checks, with a description that is wrong in one field."""
    wrong = native.openapi()
    wrong["components"]["schemas"]["SessionList"]["required"] = ["nothing"]
    operation = schemathesis.openapi.from_dict(wrong)["/v1/sessions"]["GET"]
    case = operation.Case()
    response = case.call(base_url=fuzzed.url, headers={"Authorization": f"Bearer {KEYS['alice']}"})
    assert response.status_code == 200
    with pytest.raises(FailureGroup, match="nothing"):
        case.validate_response(response, checks=CHECKS)
