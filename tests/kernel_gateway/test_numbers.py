"""Numbers that clients send: whatever they are, they become values within the limits or are refused."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_gateway.config import Settings
from kernel_gateway.dialects.agentrun import models as agentrun
from kernel_gateway.dialects.native import models as native
from kernel_gateway.dialects.ragflow import models as ragflow
from kernel_gateway.http.request_body import validated
from sessions.model.errors import InvalidRequest
from sessions.model.values import Limits, SessionSpec
from sessions.store.templates import Template
from tests.gateways import Gateway
from tests.kernel_gateway.agentrun import CONTROL
from tests.kernel_gateway.calls import process_only

SETTINGS = Settings.model_validate({})
OWN = asdict(SETTINGS.limits)
#: a value, and the maximum of such values
Share = tuple[float, float]
CODE = base64.b64encode(b"def main(): pass").decode()

digits = st.integers(0, 10**20).map(str) | st.just("9" * 5000)
numbers = st.one_of(
    st.floats(),
    st.sampled_from([1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan, 2**63, 2**64, 10**400, -(10**400)]),
    st.integers(),
    st.booleans(),
    digits,
    digits.map(lambda text: f"{text}g"),
)


def of_session(field: str, value: object) -> list[Share]:
    limits = {"limits": {field: value}} if field in OWN else {field: value}
    spec = validated(native.CreateSession, limits).spec(SETTINGS, SessionSpec())
    return [*within(spec.limits), (spec.idle_timeout, SETTINGS.max_idle_timeout)]


def of_cell(field: str, value: object) -> list[Share]:
    request = validated(native.Execute, {"code": "", field: value}).request(SETTINGS)
    return [(request.timeout, SETTINGS.max_execute_timeout)]


def of_template(field: str, value: object) -> list[Share]:
    body = validated(agentrun.TemplateBody, {"templateName": "t", field: value}).checked()
    template = Template("t", "id", body.model_dump(exclude_unset=True), 0.0, 0.0)
    spec = validated(agentrun.CreateSandbox, {"templateName": "t"}).spec(template, SETTINGS)
    assert math.isfinite(spec.lifetime)
    return [*within(spec.limits), (spec.idle_timeout, SETTINGS.max_idle_timeout)]


def of_sandbox(field: str, value: object) -> list[Share]:
    template = Template("t", "id", {}, 0.0, 0.0)
    spec = validated(agentrun.CreateSandbox, {"templateName": "t", field: value}).spec(template, SETTINGS)
    return [(spec.idle_timeout, SETTINGS.max_idle_timeout)]


def of_program(field: str, value: object) -> list[Share]:
    body = json.dumps({"code_b64": CODE, field: value}).encode()
    program = ragflow.read(ragflow.Execute, body).program(SETTINGS)
    memory = SETTINGS.memory if program.memory is None else program.memory
    return [(program.timeout or 1, SETTINGS.max_execute_timeout), (memory, SETTINGS.memory)]


def within(limits: Limits) -> list[Share]:
    return [(value, OWN[name]) for name, value in asdict(limits).items()]


FIELDS: dict[str, Callable[[str, object], list[Share]]] = {
    **dict.fromkeys([*OWN, "idle_timeout"], of_session),
    "timeout": of_cell,
    **dict.fromkeys(["cpu", "memory ", "diskSize", "sandboxIdleTimeoutInSeconds", "sandboxTTLInSeconds"], of_template),
    "sandboxIdleTimeoutSeconds": of_sandbox,
    **dict.fromkeys(["timeout ", "max_memory"], of_program),
}


@pytest.mark.parametrize(("field", "read"), FIELDS.items(), ids=FIELDS)
@given(value=numbers)
def test_a_number_is_within_its_limits_or_refused(
    field: str, read: Callable[[str, object], list[Share]], value: object
) -> None:
    with suppress(InvalidRequest):
        assert all(0 < used <= most for used, most in read(field.strip(), value))


ODD = ["nan", "inf", "-inf", "1e308", "-1", "0", "true", "9" * 400, "9" * 5000, "٣", "0x10", "1_000"]
ODD.append("0" * 8 + "1" * 5000)
#: paths with a number of the client, and whether an admin asks
NUMBERED = [
    ("/v1/admin/audit?limit={}", True),
    ("/v1/admin/audit?before={}", True),
    ("/v1/admin/audit?since={}", True),
    (f"{CONTROL}/templates?pageSize={{}}", False),
    (f"{CONTROL}/templates?pageNumber={{}}", False),
    ("/sandboxes?maxResults={}", False),
    ("/sandboxes?nextToken={}", False),
    ("/sandboxes/absent/processes/{}", False),
    ("/snapshots?limit={}", False),
]


@process_only
@pytest.mark.parametrize(("path", "by_admin"), NUMBERED)
def test_a_number_in_a_path_or_query_is_used_or_refused(gateway: Gateway, path: str, *, by_admin: bool) -> None:
    headers = {"Authorization": f"Bearer {gateway.admin_key()}"} if by_admin else {}
    for number in ODD:
        answer = gateway.call("GET", path.format(number), tenant=None if by_admin else "alice", headers=headers)
        assert answer.status_code in {200, 400, 404}, (number, answer.text)
    usual = gateway.call("GET", path.format(1), tenant=None if by_admin else "alice", headers=headers)
    assert usual.status_code == (404 if "absent" in path else 200)
