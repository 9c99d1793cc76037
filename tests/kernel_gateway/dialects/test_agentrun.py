"""AgentRun's sandboxes and templates over HTTP: their life, their lists, their limits, and their tenants."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.agentrun import CONTROL, TEMPLATE, Box, boxed, create, data, failed, template
from tests.kernel_gateway.calls import failure, process_only, raw, until

CREATE = {"templateName": TEMPLATE}
docker_only = pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)


@pytest.fixture(scope="module")
def strict() -> Iterator[Gateway]:
    """A gateway whose limits are low."""
    with gateways.gateway(
        "process", max_idle_timeout="400", max_sessions_per_tenant="3", max_execute_timeout="40"
    ) as serving:
        yield serving


def listed(gateway: Gateway, what: str = "sandboxes", tenant: str = "alice", **query: Any) -> Any:
    """Return a page of a list."""
    return data(gateway.call("GET", f"{CONTROL}/{what}", tenant=tenant, params=query))


# -- life ------------------------------------------------------------------------------------------------------


def test_a_sandbox_lives_until_it_is_stopped_and_is_remembered_until_it_is_deleted(gateway: Gateway) -> None:
    with boxed(gateway, sandboxIdleTimeoutSeconds=120) as box:
        made = data(box.call("GET", ""))
        assert (made["sandboxId"], made["status"], made["templateName"]) == (box.id, "READY", TEMPLATE)
        assert (made["templateType"], made["sandboxIdleTimeoutSeconds"]) == ("CodeInterpreter", 120)
        assert "endedAt" not in made
        assert box.get("/health")["status"] == "ok"
        assert box.text("print('here')") == "here\n"
        stopped = data(box.call("POST", "/stop", headers={"Content-Type": "application/json"}))
        assert stopped["status"] == "TERMINATED"
        assert datetime.fromisoformat(stopped["endedAt"]) >= datetime.fromisoformat(stopped["createdAt"])
        assert data(box.call("POST", "/stop")) == stopped == data(box.call("GET", ""))
        assert box.get("/health")["status"] == "terminated"
        assert data(box.call("DELETE", "")) == stopped
        for method, path in (("GET", ""), ("POST", "/stop"), ("DELETE", ""), ("GET", "/health")):
            assert failed(box.call(method, path)) == (404, "NOT_FOUND")


def test_deleting_a_sandbox_in_use_leaves_nothing_behind(gateway: Gateway) -> None:
    with boxed(gateway) as box:
        context = box.context()
        box.write("/home/user/file", "content")
        box.call("DELETE", "")
        assert failed(box.call("GET", "/files", params={"path": "file"})) == (404, "NOT_FOUND")
        assert failure(gateway.call("GET", f"/v1/sessions/{context}")) == (404, "SB011")
        again = Box(gateway, data(create(gateway, sandboxId=box.id))["sandboxId"])
        assert again.names() == []


@process_only
def test_an_ended_sandbox_refuses_every_use_with_the_reason(own_box: Box) -> None:
    data(own_box.call("POST", "/stop"))
    for method, path, body in USES:
        response = own_box.call(method, path, json=body)
        assert failed(response) == (404, "NOT_FOUND")
        assert "it was stopped" in response.json()["message"]


USES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/contexts", None),
    ("POST", "/contexts", {}),
    ("GET", "/contexts/x", None),
    ("DELETE", "/contexts/x", None),
    ("POST", "/contexts/execute", {"code": "1"}),
    ("POST", "/contexts/x/execute", {"code": "1"}),
    ("GET", "/files?path=x", None),
    ("POST", "/files", {"path": "x", "content": ""}),
    ("GET", "/filesystem", None),
    ("GET", "/filesystem/stat?path=x", None),
    ("POST", "/filesystem/mkdir", {"path": "x"}),
    ("POST", "/filesystem/move", {"source": "x", "destination": "y"}),
    ("POST", "/filesystem/remove", {"path": "x"}),
    ("GET", "/filesystem/download?path=x", None),
    ("GET", "/processes", None),
    ("POST", "/processes/cmd", {"command": "true"}),
    ("GET", "/processes/1", None),
    ("DELETE", "/processes/1", None),
]
LIFE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "", None),
    ("GET", "/health", None),
    ("POST", "/stop", None),
    ("DELETE", "", None),
]


@process_only
def test_another_tenants_sandbox_is_not_there(gateway: Gateway, box: Box) -> None:
    for plane in ("", CONTROL):
        for method, path, body in [*USES, *LIFE] if not plane else [LIFE[0], *LIFE[2:]]:
            answers = [
                gateway.call(method, f"{plane}/sandboxes/{name}{path}", tenant="bob", json=body)
                for name in (box.id, "no-such-sandbox")
            ]
            assert [failed(answer) for answer in answers] == [(404, "NOT_FOUND")] * 2
            messages = [answer.json()["message"].replace(box.id, "no-such-sandbox") for answer in answers]
            assert messages[0] == messages[1]
    assert box.id not in {item["sandboxId"] for item in listed(gateway, tenant="bob")["items"]}
    assert box.id in {item["sandboxId"] for item in listed(gateway)["items"]}, "control"
    upload = gateway.call("POST", f"/sandboxes/{box.id}/filesystem/upload", tenant="bob", files={"file": b"x"})
    assert failed(upload) == (404, "NOT_FOUND")
    assert data(box.call("GET", ""))["status"] == "READY"


@process_only
def test_two_tenants_can_use_the_same_sandbox_id(gateway: Gateway, own_box: Box) -> None:
    data(create(gateway, "bob", sandboxId=own_box.id))
    own_box.write("mine", "alice's")
    assert gateway.call("GET", f"/sandboxes/{own_box.id}/filesystem", tenant="bob").json()["entries"] == []
    data(gateway.call("DELETE", f"/sandboxes/{own_box.id}", tenant="bob"))
    assert own_box.read("mine") == "alice's"


@process_only
def test_the_envelope_repeats_the_fields_beside_it(gateway: Gateway, own_box: Box) -> None:
    for path in (f"/sandboxes/{own_box.id}", f"{CONTROL}/sandboxes/{own_box.id}"):
        body = gateway.call("GET", path).json()
        inner = body.pop("data")
        assert body.pop("code") == "SUCCESS"
        assert body.pop("requestId")
        assert body == inner
        assert all(isinstance(inner[name], str) for name in ("createdAt", "lastUpdatedAt", "templateId"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", inner["createdAt"])


@process_only
def test_an_id_is_made_or_may_be_chosen(gateway: Gateway) -> None:
    with boxed(gateway) as first, boxed(gateway) as second, boxed(gateway, sandboxId="Chosen.id_1-x") as third:
        assert len({first.id, second.id, third.id}) == 3
        assert third.id == "Chosen.id_1-x"
        assert failed(create(gateway, sandboxId=third.id)) == (409, "CONFLICT")
        data(third.call("POST", "/stop"))
        assert data(create(gateway, sandboxId=third.id))["status"] == "READY"


@process_only
@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b", "é", "x" * 65, "-rf", "a\n", "a\0", "🦊", "%41"])
def test_an_invalid_sandbox_id_is_refused(gateway: Gateway, name: str) -> None:
    assert failed(create(gateway, sandboxId=name)) == (400, "INVALID_REQUEST")
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    for method, path in (("GET", ""), ("POST", "/stop"), ("DELETE", ""), ("GET", "/contexts"), ("GET", "/filesystem")):
        answer = raw(gateway, method, f"/sandboxes/{quoted}{path}")
        assert (failure(answer)[0], answer.json["code"]) == (404, "NOT_FOUND")


@process_only
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"x",
        b'{"templateName": null}',
        b'{"templateName": 1}',
        b'{"templateName": "code-interpreter-v1", "sandboxId": 1}',
        b'{"templateName": "code-interpreter-v1", "sandboxIdleTimeoutSeconds": 0}',
        b'{"templateName": "code-interpreter-v1", "sandboxIdleTimeoutSeconds": "soon"}',
        b'{"templateName": "code-interpreter-v1", "sandboxIdleTimeoutSeconds": 1e999}',
    ],
)
def test_an_invalid_body_creates_no_sandbox(gateway: Gateway, body: bytes) -> None:
    before = len(listed(gateway, maxResults=100)["items"])
    for plane in ("", CONTROL):
        answer = raw(gateway, "POST", f"{plane}/sandboxes", body=body)
        assert (failure(answer)[0], answer.json["code"]) == (400, "INVALID_REQUEST")
    assert len(listed(gateway, maxResults=100)["items"]) == before


@process_only
@pytest.mark.parametrize("name", ["no-such-template", "", "../x", "Code-Interpreter-V1"])
def test_an_unknown_template_creates_no_sandbox(gateway: Gateway, name: str) -> None:
    response = create(gateway, templateName=name)
    assert failed(response) == (404, "NOT_FOUND")


@process_only
@pytest.mark.parametrize("field", ["nasConfig", "ossMountConfig", "polarFsConfig"])
def test_mounts_are_refused(gateway: Gateway, field: str) -> None:
    response = create(gateway, "alice", **{field: {"mountPoints": [{"mountDir": "/mnt", "serverAddr": "h:/"}]}})
    assert failed(response) == (400, "INVALID_REQUEST")
    assert field in response.json()["message"]
    with boxed(gateway, **{field: None}):
        pass


# -- limits ----------------------------------------------------------------------------------------------------


def test_an_idle_timeout_is_at_most_what_the_gateway_allows(strict: Gateway) -> None:
    for wanted, got in ((200, 200), (401, 400), (10**9, 400)):
        for name in ("sandboxIdleTimeoutSeconds", "sandboxIdleTimeoutInSeconds"):
            with boxed(strict, **{name: wanted}) as box:
                assert data(box.call("GET", ""))["sandboxIdleTimeoutSeconds"] == got
    with template(strict, sandboxIdleTimeoutInSeconds=250) as name, boxed(strict, templateName=name) as box:
        assert data(box.call("GET", ""))["sandboxIdleTimeoutSeconds"] == 250


def test_a_sandbox_has_at_most_the_limits_of_the_gateway(gateway: Gateway) -> None:
    wanted = {"cpu": 64, "memory": 10**7, "diskSize": 10**7}
    with template(gateway, **wanted) as name, boxed(gateway, templateName=name) as box:
        info = gateway.call("GET", f"/v1/sessions/{box.context()}").json()
    assert info["limits"] == gateway.call("GET", "/v1/sessions/" + _plain(gateway)).json()["limits"]
    with template(gateway, cpu=0.5, memory=128, diskSize=16) as name, boxed(gateway, templateName=name) as box:
        limits = gateway.call("GET", f"/v1/sessions/{box.context()}").json()["limits"]
    assert (limits["cpus"], limits["memory"], limits["disk"]) == (0.5, 128 * 2**20, 16 * 2**20)


@process_only
@pytest.mark.parametrize(("limit", "bound"), [({"memory": 64}, "128 MiB"), ({"cpu": 0.05}, "0.1")])
def test_a_template_with_less_than_a_kernel_needs_makes_no_sandbox(
    gateway: Gateway, limit: dict[str, float], bound: str
) -> None:
    with template(gateway, **limit) as name:
        refused = gateway.call("POST", "/sandboxes", json={"templateName": name})
    assert failed(refused) == (400, "INVALID_REQUEST")
    assert f"at least {bound}" in refused.json()["message"]


def _plain(gateway: Gateway) -> str:
    gateway.execute("shared", "1")
    return "shared"


@docker_only
def test_memory_and_disk_limits_of_a_template_are_enforced(gateway: Gateway) -> None:
    with template(gateway, memory=128, diskSize=8) as name, boxed(gateway, templateName=name) as box:
        for number in (1, 2):
            assert box.command(f"head -c 4000000 /dev/zero > {number}", cwd="/home/user")["exitCode"] == 0
        assert "No space left" in box.command("head -c 4000000 /dev/zero > 3", cwd="/home/user")["stderr"]
        reply = box.run("x = bytearray(300 * 2**20)")
        assert reply["results"][-1]["status"] == "error"
        assert reply["state"] == "lost"


@process_only
def test_a_timeout_above_the_maximum_is_lowered(gateway: Gateway, box: Box) -> None:
    for timeout in (300, 300000, 10**12):
        assert box.text("print(1)", timeout=timeout) == "1\n"
        assert box.command("echo 1", timeout=timeout)["exitCode"] == 0


@pytest.mark.parametrize(
    ("body", "ttl", "reason"), [({"sandboxIdleTimeoutSeconds": 1}, None, "idle for 1 s"), ({}, 1, "lifetime of 1 s")]
)
@process_only
def test_idle_timeout_and_lifetime_end_a_sandbox_with_all_its_contexts(
    gateway: Gateway, body: dict[str, Any], ttl: int | None, reason: str
) -> None:
    with template(gateway, sandboxTTLInSeconds=ttl) as name, boxed(gateway, templateName=name, **body) as box:
        session = box.context()
        assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 200
        ended = until(lambda: _when_ended(gateway, box), 30)
        assert reason in ended["metadata"]["reason"]
        assert reason in box.call("GET", "/contexts").json()["message"]
        assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404


def _when_ended(gateway: Gateway, box: Box) -> Any:
    found = [item for item in listed(gateway, maxResults=100)["items"] if item["sandboxId"] == box.id]
    return found[0] if found[0]["status"] == "TERMINATED" else None


def test_the_quota_of_sandboxes_per_tenant_is_enforced(strict: Gateway) -> None:
    with boxed(strict) as first, boxed(strict), boxed(strict):
        response = create(strict)
        assert failed(response) == (429, "TOO_MANY_REQUESTS")
        assert response.headers["Retry-After"]
        data(strict.call("DELETE", f"/sandboxes/{data(create(strict, 'bob'))['sandboxId']}", tenant="bob"))
        data(first.call("POST", "/stop"))
        with boxed(strict):
            pass


def test_contexts_count_as_sessions(strict: Gateway) -> None:
    with boxed(strict) as box:
        first, _ = box.context(), box.context()
        assert failed(box.call("POST", "/contexts", json={})) == (429, "TOO_MANY_REQUESTS")
        assert failure(strict.call("POST", "/v1/sessions", json={})) == (429, "SB008")
        assert box.call("DELETE", f"/contexts/{first}").status_code == 204
        box.context()


# -- lists -----------------------------------------------------------------------------------------------------


def test_a_list_without_matches_is_empty(strict: Gateway) -> None:
    assert listed(strict, tenant="bob", templateName="none") == {"items": [], "nextToken": ""}
    assert listed(strict, templateType="Browser")["items"] == []
    assert listed(strict, "templates", templateType="Browser")["items"] == []


@process_only
def test_sandboxes_are_listed_by_page_the_latest_first(gateway: Gateway) -> None:
    with template(gateway) as name:
        boxes = [data(create(gateway, templateName=name))["sandboxId"] for _ in range(5)]
        data(gateway.call("POST", f"/sandboxes/{boxes[4]}/stop"))
        seen, token = [], ""
        for size in (2, 2, 1):
            page = listed(gateway, templateName=name, maxResults=2, nextToken=token)
            assert len(page["items"]) == size
            seen += [item["sandboxId"] for item in page["items"]]
            token = page["nextToken"]
        assert token == ""
        assert seen == [boxes[3], boxes[2], boxes[1], boxes[0], boxes[4]]
        ready = listed(gateway, templateName=name, status="READY")["items"]
        assert {item["sandboxId"] for item in ready} == set(boxes[:4])
        ended = listed(gateway, templateName=name, status="TERMINATED", templateType="CodeInterpreter")["items"]
        assert [item["sandboxId"] for item in ended] == [boxes[4]]
        assert data(gateway.call("GET", "/sandboxes", params={"templateName": name})) == listed(
            gateway, templateName=name
        )
        for box in boxes:
            gateway.call("DELETE", f"/sandboxes/{box}")


@process_only
@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "1e3", "9" * 20, "\uff11"])
def test_an_invalid_page_is_refused(gateway: Gateway, value: str) -> None:
    for path in ("sandboxes?maxResults=", "sandboxes?nextToken=", "templates?pageNumber=", "templates?pageSize="):
        assert failed(gateway.call("GET", f"{CONTROL}/{path}{value}")) == (400, "INVALID_REQUEST")


# -- templates -------------------------------------------------------------------------------------------------


@process_only
def test_a_template_is_kept_changed_and_forgotten(gateway: Gateway) -> None:
    body = json.loads(
        '{"cpu":2.0,"diskSize":512,"memory":4096,"networkConfiguration":{"networkMode":"PUBLIC"},"ossConfiguration":[],'
        '"sandboxIdleTimeoutInSeconds":1800,"sandboxTTLInSeconds":21600,"templateType":"CodeInterpreter"}'
    )
    with template(gateway, **body) as name:
        path = f"{CONTROL}/templates/{name}"
        made = data(gateway.call("GET", path))
        assert made.items() >= {**body, "templateName": name, "status": "READY"}.items()
        assert failed(gateway.call("POST", f"{CONTROL}/templates", json={"templateName": name})) == (409, "CONFLICT")
        changed = data(gateway.call("PUT", path, json={"description": "for a test", "memory": 256}))
        assert changed == data(gateway.call("GET", path))
        assert changed.items() >= {**body, "description": "for a test", "memory": 256}.items()
        assert changed["templateId"] == made["templateId"]
        for method in ("GET", "PUT", "DELETE"):
            assert failed(gateway.call(method, path, tenant="bob", json={})) == (404, "NOT_FOUND")
        with boxed(gateway, templateName=name) as box:
            assert data(gateway.call("DELETE", path)) == changed
            assert box.get("/health")["status"] == "ok"
        for method in ("GET", "PUT", "DELETE"):
            assert failed(gateway.call(method, path, json={})) == (404, "NOT_FOUND")


@process_only
def test_templates_are_listed_by_page_after_the_built_in_template(gateway: Gateway) -> None:
    with template(gateway) as first, template(gateway) as second, template(gateway) as third:
        everything = listed(gateway, "templates", pageSize=100)
        names = [item["templateName"] for item in everything["items"]]
        assert names[0] == TEMPLATE
        assert names[-3:] == [first, second, third]
        assert everything["total"] == len(names)
        paged = [listed(gateway, "templates", pageNumber=page, pageSize=2) for page in range(1, len(names) // 2 + 2)]
        assert [item["templateName"] for page in paged for item in page["items"]] == names
        assert paged[1]["pageNumber"] == 2
        assert not {first, second, third} & {
            item["templateName"] for item in listed(gateway, "templates", "bob")["items"]
        }


@process_only
def test_a_number_of_a_template_keeps_all_its_digits(gateway: Gateway) -> None:
    with template(gateway, more=2**70) as name:
        assert data(gateway.call("GET", f"{CONTROL}/templates/{name}"))["more"] == 2**70


@process_only
def test_the_built_in_template_cannot_be_changed_or_deleted(gateway: Gateway) -> None:
    path = f"{CONTROL}/templates/{TEMPLATE}"
    before = data(gateway.call("GET", path))
    assert (before["templateName"], before["status"]) == (TEMPLATE, "READY")
    assert failed(gateway.call("PUT", path, json={"memory": 1})) == (400, "INVALID_REQUEST")
    assert failed(gateway.call("DELETE", path)) == (400, "INVALID_REQUEST")
    assert failed(gateway.call("POST", f"{CONTROL}/templates", json=CREATE)) == (409, "CONFLICT")
    assert data(gateway.call("GET", path)) == before


NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]
WRONG: dict[str, dict[str, Any]] = {
    "another kind": {"templateType": "Browser"},
    "no processor": {"cpu": 0},
    "memory as text": {"memory": "much"},
    "a disk below nothing": {"diskSize": -1},
    "no time": {"sandboxIdleTimeoutInSeconds": 0},
    "a mount": {"ossConfiguration": [{"bucketName": "b", "mountPoint": "/mnt"}]},
    "another mount": {"nasConfig": {"mountPoints": [{}]}},
    "a variable's name": {"environmentVariables": {"A=B": "x"}},
    "a variable's value": {"environmentVariables": {"A": 1}},
    "a variable of NUL": {"environmentVariables": {"A": "\0"}},
    "too much": {"description": "x" * 1_000_000},
    "too deep": {"more": NESTED},
}


@process_only
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_an_invalid_template_is_refused(gateway: Gateway, body: dict[str, Any]) -> None:
    name = f"t-{secrets.token_hex(4)}"
    refused = gateway.call("POST", f"{CONTROL}/templates", json={"templateName": name, **body})
    assert failed(refused) == (400, "INVALID_REQUEST")
    assert failed(gateway.call("GET", f"{CONTROL}/templates/{name}")) == (404, "NOT_FOUND")
    with template(gateway) as good:
        path = f"{CONTROL}/templates/{good}"
        before = data(gateway.call("GET", path))
        assert failed(gateway.call("PUT", path, json=body)) == (400, "INVALID_REQUEST")
        assert data(gateway.call("GET", path)) == before


@process_only
@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "é", "x" * 65, "a%41", "a\0"])
def test_an_invalid_template_name_is_refused(gateway: Gateway, name: str) -> None:
    assert failed(gateway.call("POST", f"{CONTROL}/templates", json={"templateName": name})) == (400, "INVALID_REQUEST")


def test_environment_variables_of_a_template_are_set_for_code_and_commands(gateway: Gateway) -> None:
    with (
        template(gateway, environmentVariables={"COLOUR": "grün und blau"}) as name,
        boxed(gateway, templateName=name) as box,
    ):
        assert box.text("import os; print(os.environ['COLOUR'])") == "grün und blau\n"
        assert box.command("echo $COLOUR")["stdout"] == "grün und blau\n"


def test_templates_outlive_the_gateway_and_sandboxes_do_not(tmp_path: Path) -> None:
    seen: list[Any] = []
    for _ in range(2):
        with gateways.gateway("process", state_dir=str(tmp_path)) as serving:
            if not seen:
                serving.call("POST", f"{CONTROL}/templates", json={"templateName": "kept", "cpu": 0.5})
                data(create(serving, templateName="kept", sandboxId="gone"))
            else:
                assert serving.call("GET", "/sandboxes/gone").status_code == 404
            seen.append(data(serving.call("GET", f"{CONTROL}/templates/kept")))
            assert failed(serving.call("GET", f"{CONTROL}/templates/kept", tenant="bob")) == (404, "NOT_FOUND")
    assert seen[0] == seen[1]


# -- failures --------------------------------------------------------------------------------------------------


@process_only
def test_a_failure_has_flat_fields_and_the_gateways_own_form(gateway: Gateway) -> None:
    body = gateway.call("GET", "/sandboxes/none").json()
    assert body["message"].startswith(body["error"]["message"].rstrip("."))
    assert body["requestId"] == body["error"]["request_id"]
    unknown = gateway.call("GET", "/sandboxes", tenant=None)
    assert failed(unknown) == (401, "UNAUTHORIZED")
    assert failed(gateway.call("PATCH", "/sandboxes")) == (405, "METHOD_NOT_ALLOWED")
