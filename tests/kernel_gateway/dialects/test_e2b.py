"""E2B's control plane and code interpreter over HTTP: what their own SDK does not send, and what it does not show."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import pytest
import requests

from kernel_gateway.dialects import e2b
from kernel_gateway.dialects.e2b.base import ControlHandler, SandboxHandler
from kernel_gateway.gateway import Gateway as Parts
from kernel_gateway.http.handlers import BaseHandler
from tests import gateways
from tests.gateways import KEYS, Gateway, text_of
from tests.kernel_gateway.calls import failure, process_only, raw, until
from tests.kernel_gateway.e2b import *  # noqa: F403 - the fixtures
from tests.kernel_gateway.e2b import ENVD, NOWHERE, SDK, Box, boxed, control
from tests.kernel_gateway.jupyter import connected


def refused(response: requests.Response) -> tuple[int, str]:
    """Return status and message of a failure of the control plane."""
    body = response.json()
    assert body["code"] == response.status_code
    return response.status_code, body["message"]


# -- the control plane -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v2/sandboxes", "/sandboxes"])
def test_a_sandbox_is_made_in_both_generations(gateway: Gateway, path: str) -> None:
    with boxed(gateway) as box:
        made = control(gateway, "POST", path, json={"templateID": "code-interpreter-v1", "secure": True})
        assert made.status_code == 201
        told = made.json()
        assert {"templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken"} <= told.keys()
        assert told["sandboxID"] != box.id
        assert control(gateway, "DELETE", f"/sandboxes/{told['sandboxID']}").status_code == 204


def test_the_same_idempotency_key_makes_one_sandbox_for_each_tenant(gateway: Gateway) -> None:
    key = {"Idempotency-Key": secrets.token_hex(8)}
    made = [
        control(
            gateway, "POST", "/v2/sandboxes", tenant, headers=key, json={"templateID": "base", "timeout": 60}
        ).json()
        for tenant in ("alice", "alice", "bob")
    ]
    assert made[0] == made[1]
    assert made[0]["sandboxID"] != made[2]["sandboxID"]
    for tenant, told in (("alice", made[0]), ("bob", made[2])):
        assert control(gateway, "DELETE", f"/sandboxes/{told['sandboxID']}", tenant).status_code == 204


def test_sandboxes_are_listed_by_their_metadata_in_pages_that_stay(gateway: Gateway) -> None:
    whose = {"who & what": f"ä={secrets.token_hex(4)}", "more": "1"}
    ids = [
        control(gateway, "POST", "/v2/sandboxes", json={"templateID": "base", "metadata": whose}).json()["sandboxID"]
        for _ in range(3)
    ]
    wanted = urlencode({quote(name): quote(value) for name, value in whose.items() if name != "more"})
    first = control(gateway, "GET", "/v2/sandboxes", params={"metadata": wanted, "limit": 2})
    assert [each["sandboxID"] for each in first.json()] == [ids[2], ids[1]]
    assert first.json()[0]["metadata"] == whose
    assert control(gateway, "DELETE", f"/sandboxes/{ids[1]}").status_code == 204
    token = first.headers["X-Next-Token"]
    second = control(gateway, "GET", "/v2/sandboxes", params={"metadata": wanted, "nextToken": token})
    assert [each["sandboxID"] for each in second.json()] == [ids[0]]
    assert "X-Next-Token" not in second.headers
    for query in ({"state": "paused"}, {"template": "other"}, {"startedAfter": "2999-01-01T00:00:00Z"}):
        assert control(gateway, "GET", "/v2/sandboxes", params={"metadata": wanted, **query}).json() == []
    rising = control(
        gateway, "GET", "/sandboxes", params={"metadata": wanted, "order": "asc", "state": "running,paused"}
    )
    assert [each["sandboxID"] for each in rising.json()] == [ids[0], ids[2]]
    for name in ids:
        control(gateway, "DELETE", f"/sandboxes/{name}")


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "x"}, {"nextToken": "x"}, {"startedAfter": "x"}, {"metadata": "a=b&" * 200}],
    ids=str,
)
def test_a_list_refuses_what_it_cannot_read(gateway: Gateway, query: dict[str, str]) -> None:
    status, message = refused(control(gateway, "GET", "/v2/sandboxes", params=query))
    assert (status, next(iter(query)) in message) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"templateID": "mine"}, 404, "template 'mine' not found"),
        ({"templateID": "base", "mcp": {"a": {}}}, 501, "MCP"),
        ({"templateID": "base", "volumeMounts": [{"name": "a", "path": "/a"}]}, 501, "mounted"),
        ({"templateID": "base", "network": {"allowOut": ["1.1.1.1"]}}, 501, "no network"),
        ({"templateID": "base", "network": {"rules": {"a.test": []}}}, 501, "no network"),
        ({"templateID": "base", "network": {"denyOut": ["no address"]}}, 400, "network.denyOut"),
        ({"templateID": "base", "network": {"denyOut": ["1.1.1.1"] * 1001}}, 400, "network.denyOut"),
        ({"templateID": "base", "autoPause": True, "autoPauseMemory": False}, 501, "keeps its memory"),
        ({"templateID": "base", "iam": {"a": 1}}, 501, "identity"),
        ({"templateID": "base", "timeout": 10**9}, 400, "at most 3600"),
        ({"templateID": "base", "timeout": -1}, 400, "timeout"),
        ({"templateID": "base", "envVars": {"LD_PRELOAD": "x"}}, 400, "LD_PRELOAD"),
        ({"templateID": "base", "metadata": {"a": "x" * 20_000}}, 400, "metadata"),
        ({"templateID": 7}, 400, "templateID"),
        ({"templateID": f"base:{'a' * 300}"}, 400, "templateID"),
        ({}, 400, "templateID"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_and_says_why(
    gateway: Gateway, body: dict[str, Any], status: int, words: str
) -> None:
    found, message = refused(control(gateway, "POST", "/v2/sandboxes", json=body))
    assert found == status
    assert words in message


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/sandboxes/{id}/snapshots", "cannot be copied here"),
        ("POST", "/sandboxes/{id}/fork", "cannot be copied here"),
        ("POST", "/templates", "not built here"),
        ("POST", "/v3/templates", "not built here"),
        ("DELETE", "/templates/base", "not built here"),
        ("GET", "/templates/base/builds/1/status", "not built here"),
        ("GET", "/volumes", "nothing can be mounted"),
        ("GET", "/secrets", "no secrets"),
        ("POST", "/sandboxes/{id}/anything", "no such call"),
    ],
)
def test_calls_that_are_not_there_say_why(gateway: Gateway, box: Box, method: str, path: str, words: str) -> None:
    status, message = refused(control(gateway, method, path.format(id=box.id), json={}))
    assert (status, words in message) == (501, True)
    nobody = gateway.call(method, path.format(id=box.id), tenant=None, headers=SDK, json={})
    assert refused(nobody)[0] == 401


def test_its_time_begins_when_a_sandbox_can_be_used_and_is_over_at_once(gateway: Gateway, box: Box) -> None:
    def ends() -> str:
        told: str = control(gateway, "GET", f"/sandboxes/{box.id}").json()["endAt"]
        return told

    before = ends()
    assert control(gateway, "POST", f"/v2/sandboxes/{box.id}/connect", json={"timeout": 10}).status_code == 200
    assert ends() == before
    assert control(gateway, "POST", f"/sandboxes/{box.id}/refreshes", json={"duration": 10}).status_code == 204
    assert ends() == before
    assert control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={"timeout": 900}).status_code == 200
    assert ends() > before
    assert control(gateway, "POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 0}).status_code == 204
    assert box.call("GET", "/health", ENVD).status_code == 502
    assert refused(control(gateway, "GET", f"/sandboxes/{box.id}"))[0] == 404
    assert refused(control(gateway, "POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 9}))[0] == 404


@pytest.mark.parametrize(("longest", "lives"), [(3600, 300), (60, 60)])
def test_a_sandbox_lives_five_minutes_when_its_client_names_no_time(longest: int, lives: int) -> None:
    with gateways.gateway("process", idle_timeout="60", max_idle_timeout=str(longest)) as gateway:
        made = control(gateway, "POST", "/v2/sandboxes", json={"templateID": "base"})
        assert made.status_code == 201, made.text
        path = f"/sandboxes/{made.json()['sandboxID']}"
        told = control(gateway, "GET", path).json()
        started, ends = (datetime.fromisoformat(told[name]) for name in ("startedAt", "endAt"))
        assert lives <= (ends - started).total_seconds() < lives + 10  # it counts from the end of the start
        assert control(gateway, "POST", f"/v2{path}/connect", json={}).status_code == 200
        assert control(gateway, "DELETE", path).status_code == 204


def test_early_sdks_resume_what_is_paused_and_connect_to_it(gateway: Gateway, box: Box) -> None:
    def asked(call: str, **body: Any) -> requests.Response:
        return control(gateway, "POST", f"/sandboxes/{box.id}/{call}", json=body)

    assert box.text("x = 20; x") == "20"
    status, message = refused(asked("resume", timeout=60))
    assert (status, "running" in message) == (409, True)
    assert asked("pause").status_code == 204
    for call in "timeout", "refreshes":  # the first tells these SDKs that it is paused
        status, message = refused(asked(call, timeout=60))
        assert (status, "paused" in message) == (404, True)
    resumed = asked("resume", timeout=600, autoPause=False)
    assert (resumed.status_code, resumed.json()["envdAccessToken"]) == (201, box.token)
    assert control(gateway, "GET", f"/sandboxes/{box.id}").json()["envdAccessToken"] == box.token
    assert box.text("x + 1") == "21"
    assert refused(control(gateway, "POST", f"/sandboxes/{NOWHERE}/resume", json={}))[0] == 404


def paused(gateway: Gateway, box: Box) -> None:
    assert control(gateway, "POST", f"/sandboxes/{box.id}/pause").status_code == 204


def state(gateway: Gateway, box: Box) -> str:
    told: str = control(gateway, "GET", f"/sandboxes/{box.id}").json()["state"]
    return told


def test_a_pause_or_resume_of_the_files_alone_is_refused_and_changes_nothing(gateway: Gateway, box: Box) -> None:
    assert box.text("x = 20; x") == "20"
    for call, before in (("pause", "running"), ("connect", "paused")):
        answer = control(gateway, "POST", f"/sandboxes/{box.id}/{call}", json={"memory": False})
        status, message = refused(answer)
        assert (status, "keeps its memory" in message, state(gateway, box)) == (501, True, before)
        assert control(gateway, "POST", f"/sandboxes/{box.id}/{call}", json={"memory": True}).status_code < 300
    assert box.text("x") == "20"


USES_THAT_WAKE: list[Callable[[Box], bool]] = [
    lambda box: box.text("x") == "20",
    lambda box: box.call("GET", "/health", ENVD).status_code == 204,
    lambda box: box.call("POST", "/files", ENVD, params={"path": "up"}, files={"file": "a"}).status_code == 200,
    lambda box: box.call("POST", "/filesystem.Filesystem/ListDir", ENVD, json={"path": "/tmp"}).status_code == 200,
]


def test_any_use_wakes_a_paused_sandbox_whose_client_wants_that(gateway: Gateway) -> None:
    with boxed(gateway, timeout=60, autoPause=True, autoResume={"enabled": True}) as box:
        box.run("x = 20")
        for use in USES_THAT_WAKE:
            paused(gateway, box)
            stranger = replace(box, token="x" * 64).call("GET", "/health", ENVD)
            assert (stranger.status_code, state(gateway, box)) == (502, "paused")
            assert use(box)
            assert state(gateway, box) == "running"
        told = control(gateway, "GET", f"/sandboxes/{box.id}").json()
        assert told["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
        left = datetime.fromisoformat(told["endAt"]).timestamp() - time.time()
        assert 240 < left <= 300  # and not the 60 s that it was made with
        paused(gateway, box)
        with ThreadPoolExecutor() as others:  # each of them would wake it
            assert [answer.result() for answer in [others.submit(box.text, "x") for _ in range(3)]] == ["20"] * 3


def test_no_use_wakes_a_paused_sandbox_otherwise(gateway: Gateway, box: Box) -> None:
    paused(gateway, box)
    answer = box.call("POST", "/execute", json={"code": "1"})
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")
    assert state(gateway, box) == "paused"


def context_of(gateway: Gateway) -> str:
    """Return the name of the context that was made last, in the other dialects."""
    sessions = gateway.call("GET", "/v1/sessions").json()["sessions"]
    name: str = max(sessions, key=lambda session: session["created_at"])["name"]
    return name


def neither_native_nor_jupyter_use(gateway: Gateway, box: Box, expected: str) -> None:
    """Refuse other dialects' calls to the context of a paused sandbox, and find it unchanged after the resume."""
    assert box.text("x = 20; x") == "20"
    name = context_of(gateway)
    paused(gateway, box)
    for answer in (
        gateway.call("POST", f"/v1/sessions/{name}/execute", json={"code": "x = 3"}),
        gateway.call("GET", f"/v1/sessions/{name}/files/"),
        gateway.call("POST", f"/api/kernels/{name}/restart"),
    ):
        assert (answer.status_code, "SB016" in answer.text) == (404, True), answer.text
        assert "paused: resume it first" in answer.text
    assert gateway.call("GET", f"/v1/sessions/{name}").json()["state"] == expected
    assert control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={"timeout": 300}).status_code == 201
    assert box.text("x") == "20"


def test_no_other_dialect_uses_a_context_of_a_paused_sandbox(gateway: Gateway, box: Box) -> None:
    neither_native_nor_jupyter_use(gateway, box, "idle")


@pytest.mark.engine
@pytest.mark.parametrize(("sleep_disk", "expected"), [("1g", "asleep"), ("0", "idle")], ids=["on disk", "in memory"])
def test_no_other_dialect_wakes_a_context_of_a_paused_sandbox(sleep_disk: str, expected: str) -> None:
    with gateways.gateway("docker", golden_images="auto", pool_max="0", sleep_disk=sleep_disk) as gateway:
        if expected == "asleep":
            gateway.wait_for_sleep()
        with boxed(gateway) as box:
            neither_native_nor_jupyter_use(gateway, box, expected)
        assert gateway.errors() == []


ISOLATIONS = pytest.mark.parametrize("isolation", ["process", pytest.param("docker", marks=pytest.mark.engine)])


@ISOLATIONS
async def test_requests_of_a_front_end_that_is_connected_to_a_paused_context_are_refused_at_once(
    isolation: str,
) -> None:
    requests_besides_cells: list[tuple[str, str, dict[str, Any]]] = [
        ("shell", "kernel_info_request", {}),
        ("shell", "complete_request", {"code": "x", "cursor_pos": 1}),
        ("control", "debug_request", {}),
    ]
    with gateways.gateway(isolation) as gateway, boxed(gateway) as box:
        box.run("x = 20")
        async with connected(gateway, context_of(gateway)) as client:
            await client.of(await client.send("shell", "kernel_info_request", {}))  # the positive control
            paused(gateway, box)
            for channel, kind, content in requests_besides_cells:
                asked = await client.send(channel, kind, content)
                while (answer := await client.next())["parent"].get("msg_id") != asked:
                    pass
                told = answer["content"]
                assert (told["status"], "paused: resume it first" in told["evalue"]) == ("error", True), told
            assert control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={"timeout": 300}).status_code == 201
            assert await client.text("print(x)") == "20\n"


@ISOLATIONS
def test_a_native_cell_goes_on_after_a_pause_that_outlasts_its_deadline(isolation: str) -> None:
    with gateways.gateway(isolation) as gateway, boxed(gateway) as box, ThreadPoolExecutor() as client:
        box.run("x = 20; import time")
        name = context_of(gateway)
        # Longer than a pause waits for the end of cells, and shorter than its deadline.
        asked = {"code": "for _ in range(80): time.sleep(0.1)\nx", "timeout": 16}
        cell = client.submit(gateway.call, "POST", f"/v1/sessions/{name}/execute", json=asked)
        until(lambda: gateway.call("GET", f"/v1/sessions/{name}").json()["state"] == "busy")
        began = time.monotonic()
        paused(gateway, box)
        while time.monotonic() < began + 17:
            assert not cell.done()
            time.sleep(0.1)
        assert control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={"timeout": 300}).status_code == 201
        reply = cell.result().json()
        assert (reply["status"], reply["state"], text_of(reply)) == ("ok", "preserved", "20")
        assert reply["duration_ms"] < 16_000
        assert gateway.errors() == []


def test_a_sandbox_tells_what_its_client_has_asked_for(gateway: Gateway, box: Box) -> None:
    told = control(gateway, "GET", f"/sandboxes/{box.id}").json()
    assert told["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert (told["allowInternetAccess"], told["volumeMounts"], "network" in told) == (None, [], False)
    network = {"allowPublicTraffic": True, "allowOut": [], "denyOut": []}
    with boxed(gateway, allow_internet_access=True, network=network) as asked:
        told = control(gateway, "GET", f"/sandboxes/{asked.id}").json()
        assert (told["allowInternetAccess"], told["network"]) == (True, network)
        listed = control(gateway, "GET", "/v2/sandboxes").json()
        assert next(each for each in listed if each["sandboxID"] == asked.id)["network"] == network


@pytest.mark.parametrize("rules", [{"denyOut": ["0.0.0.0/0"]}, {"allow_internet_access": False}, {"denyOut": ["::1"]}])
def test_rules_that_deny_hold_already(gateway: Gateway, box: Box, rules: dict[str, Any]) -> None:
    assert control(gateway, "PUT", f"/sandboxes/{box.id}/network", json=rules).status_code == 204
    told = control(gateway, "GET", f"/sandboxes/{box.id}").json()
    assert told["network"].get("denyOut") == rules.get("denyOut")
    assert told["allowInternetAccess"] == rules.get("allow_internet_access")


@pytest.mark.parametrize(
    ("rules", "status", "words"),
    [
        ({}, 501, "no network"),
        ({"allow_internet_access": True}, 501, "no network"),
        ({"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1"]}, 501, "allowOut"),
        ({"denyOut": ["0.0.0.0/0"], "egressProxy": {"address": "a:1"}}, 501, "egressProxy"),
        ({"denyOut": ["example.org"]}, 400, "denyOut"),
    ],
    ids=str,
)
def test_rules_that_open_the_network_are_refused(
    gateway: Gateway, box: Box, rules: dict[str, Any], status: int, words: str
) -> None:
    found, message = refused(control(gateway, "PUT", f"/sandboxes/{box.id}/network", json=rules))
    assert (found, words in message) == (status, True)
    assert "network" not in control(gateway, "GET", f"/sandboxes/{box.id}").json()


# -- templates -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offering() -> Iterator[Gateway]:
    """A gateway that offers further images, one of them not to the tenant bob."""
    limits = '{"bob": {"images": ["registry.test/team/tools"]}}'
    with gateways.gateway(
        "process", images="kernel-gateway/python:r,registry.test/team/tools", tenants=limits
    ) as serving:
        yield serving


def test_the_operators_images_are_templates(offering: Gateway) -> None:
    listed = control(offering, "GET", "/templates").json()
    assert [(each["templateID"], each["buildStatus"]) for each in listed] == [
        ("code-interpreter-v1", "ready"),
        ("python:r", "ready"),
        ("tools", "ready"),
    ]
    for each in listed:
        one = control(offering, "GET", f"/templates/{quote(each['names'][-1], safe='')}").json()
        assert one == each
        assert one["builds"][0]["buildID"] == one["buildID"]
        for name in each["names"]:
            found = control(offering, "GET", f"/templates/aliases/{quote(name, safe='')}")
            assert found.json() == {"templateID": each["templateID"], "public": False}
    for path in ("/templates/mastra-1a2b", "/templates/aliases/mastra-1a2b"):
        status, message = refused(control(offering, "GET", path))
        assert (status, "template 'mastra-1a2b' not found; there are: base, code" in message) == (404, True)


def test_a_tenant_has_only_the_images_that_it_may_use(offering: Gateway) -> None:
    names = [each["templateID"] for each in control(offering, "GET", "/v2/templates", "bob").json()]
    assert names == ["code-interpreter-v1", "tools"]
    for method, path in (("GET", "/templates/python:r"), ("POST", "/v2/sandboxes")):
        assert refused(control(offering, method, path, "bob", json={"templateID": "python:r"}))[0] == 404


def test_plain_processes_have_no_figures(gateway: Gateway, box: Box) -> None:
    path = f"/sandboxes/{box.id}/metrics"
    answer = control(gateway, "GET", path, params={"start": "0", "end": "99999999999"})
    assert (answer.status_code, answer.json()) == (200, [])
    for query in ({"start": "x"}, {"end": "-1"}, {"end": "1" * 13}, {"start": "1.5"}):
        status, message = refused(control(gateway, "GET", path, params=query))
        assert (status, next(iter(query)) in message) == (400, True)


def test_a_sandbox_of_another_dialect_is_none_of_this_one(gateway: Gateway) -> None:
    name = "b" * 20
    made = gateway.call("POST", "/sandboxes", json={"templateName": "code-interpreter-v1", "sandboxId": name})
    assert made.status_code == 200, made.text
    try:
        assert refused(control(gateway, "GET", f"/sandboxes/{name}"))[0] == 404
        assert name not in control(gateway, "GET", "/v2/sandboxes").text
        assert Box(gateway, name, "").call("GET", "/health").status_code == 502
        assert gateway.call("GET", f"/sandboxes/{name}").status_code == 200
    finally:
        gateway.call("DELETE", f"/sandboxes/{name}")


# -- who may use a sandbox -------------------------------------------------------------------------------------

ROUTES = [
    (pattern.replace("\\", ""), cast("type[BaseHandler]", handler))
    for pattern, handler, _ in e2b.routes(cast("Parts", None))
]
OF_SANDBOXES = [(path, handler) for path, handler in ROUTES if issubclass(handler, SandboxHandler)]
#: a path for each pattern that is more than a path
EXAMPLES = {
    "/contexts/([^/]+)": "/contexts/x",
    "/contexts/([^/]+)/restart": "/contexts/x/restart",
    "/(?:filesystem.Filesystem|process.Process)/(w+)": "/process.Process/Unknown",
    "/.*": "/v1/sessions",
}
USES = [
    (method, EXAMPLES.get(path, path), port)
    for path, handler in OF_SANDBOXES
    for port in sorted(handler.ports)
    for method in ("GET", "POST", "DELETE")
]


def test_every_route_needs_a_key_or_the_token_of_a_sandbox() -> None:
    assert not [path for path, handler in ROUTES if handler.public]
    assert not [path for path, handler in ROUTES if not issubclass(handler, ControlHandler | SandboxHandler)]
    assert len(OF_SANDBOXES) > len(EXAMPLES)
    for path, _ in OF_SANDBOXES:
        assert re.fullmatch(r"[\w./]+", EXAMPLES.get(path, path)), "EXAMPLES has no path for it"


#: how strangers name a sandbox: another one's id, or a token that is not of this one
Forge = Callable[[Box], Box]


@pytest.mark.parametrize(
    "forge", [lambda box: replace(box, token=""), lambda box: replace(box, token=box.token[:-1] + "x")]
)
def test_a_stranger_gets_the_answer_of_a_sandbox_that_is_not_there(gateway: Gateway, box: Box, forge: Forge) -> None:
    forged = forge(box)
    for method, path, port in USES:
        told = [each.call(method, path, port, json={"code": "1"}) for each in (forged, replace(forged, id=NOWHERE))]
        assert [answer.status_code for answer in told] == [502, 502]
        assert told[0].json() == {"sandboxId": box.id, "message": "The sandbox was not found", "code": 502}
        assert told[0].text.replace(box.id, NOWHERE) == told[1].text
    assert box.call("GET", "/health").json() == "OK"


def test_another_tenants_sandbox_is_not_there(gateway: Gateway, box: Box) -> None:
    with boxed(gateway) as other:
        assert replace(box, token=other.token).call("GET", "/health").status_code == 502
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/timeout"),
        ("POST", "/connect"),
        ("POST", "/refreshes"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/metrics"),
    ):
        told = [
            control(gateway, method, f"/sandboxes/{name}{path}", "bob", json={"timeout": 9})
            for name in (box.id, NOWHERE)
        ]
        assert [refused(answer)[0] for answer in told] == [404, 404]
        bodies = [answer.json()["message"].replace(box.id, NOWHERE) for answer in told]
        assert bodies[0] == bodies[1]
    assert control(gateway, "GET", "/v2/sandboxes", "bob").json() == []
    assert box.call("GET", "/health").json() == "OK"


def test_code_runs_with_either_token_and_files_with_one(gateway: Gateway, box: Box) -> None:
    told = control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={}).json()
    assert told["envdAccessToken"] == box.token
    traffic = Box(gateway, box.id, "", told["trafficAccessToken"])
    assert traffic.text("1 + 1") == "2"
    assert traffic.call("GET", "/health", ENVD).status_code == 502
    assert box.call("GET", "/health", ENVD).status_code == 204


@pytest.mark.parametrize("port", ["3000", "49998"])
def test_servers_are_reached_in_sandboxed_sandboxes_only(box: Box, port: str) -> None:
    answer = box.call("GET", "/contexts", headers={"E2b-Sandbox-Port": port})
    assert (answer.status_code, answer.json()["port"]) == (502, int(port))
    assert answer.json()["message"].startswith("The sandbox is running but port is not open: kernels run without")


def test_a_port_that_cannot_be_is_refused(box: Box) -> None:
    answer = box.call("GET", "/contexts", headers={"E2b-Sandbox-Port": "99999"})
    assert (answer.status_code, answer.text) == (400, "Invalid sandbox port")


@pytest.mark.parametrize("port", ["0", "-1", "x", "", "49983x", "1" * 200])
def test_other_ports_are_not_open(box: Box, port: str) -> None:
    answer = box.call("GET", "/contexts", headers={"E2b-Sandbox-Port": port})
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox is running but port is not open")


def test_each_port_has_its_own_paths(box: Box) -> None:
    assert box.call("GET", "/contexts", ENVD).status_code == 404
    assert box.call("GET", "/contexts").status_code == 200
    assert "no such call" in box.call("GET", "/nothing").text


@pytest.mark.parametrize("name", ["", "x", "../..", "%2e", "a" * 5000, "A" * 20, "a" * 20 + ",b", "ä", "\x7f"])
def test_a_hostile_id_is_no_sandbox(gateway: Gateway, name: str) -> None:
    headers = (("E2b-Sandbox-Id", name.encode()), ("E2b-Sandbox-Port", "49999"), ("X-Access-Token", "x"))
    answer = raw(gateway, "GET", "/contexts", headers=headers)
    assert answer.status_code in {400, 502}  # 400: no valid header
    if answer.status_code == 502:
        assert answer.json["message"] == "The sandbox was not found"
    assert control(gateway, "GET", f"/sandboxes/{quote(name, safe='') or 'x'}").status_code == 404


def test_tokens_end_with_the_key_that_they_were_got_with(gateway: Gateway) -> None:
    command = [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(gateway.state_dir)]
    made = subprocess.run([*command, "add", "alice", "--e2b"], check=True, capture_output=True, text=True)
    key, key_id = {"X-API-Key": made.stdout.strip()}, made.stderr.split()[1]
    assert key["X-API-Key"].startswith("e2b_")
    assert len(bytes.fromhex(key["X-API-Key"].removeprefix("e2b_"))) == 20
    # Without the SDK's other headers: the form of the key is enough.
    told = gateway.call("POST", "/sandboxes", tenant=None, headers=key, json={"templateID": "base"}).json()
    box = Box(gateway, told["sandboxID"], told["envdAccessToken"])
    assert box.call("GET", "/health").json() == "OK"
    subprocess.run([*command, "revoke", key_id], check=True, capture_output=True)
    assert box.call("GET", "/health").status_code == 502
    again = control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={}).json()
    assert again["envdAccessToken"] != box.token
    assert box.call("GET", "/health").status_code == 502
    assert replace(box, token=again["envdAccessToken"]).call("GET", "/health").json() == "OK"
    control(gateway, "DELETE", f"/sandboxes/{box.id}")


def test_other_dialects_keep_their_paths(gateway: Gateway) -> None:
    assert failure(gateway.call("GET", "/contexts")) == (404, "SB022")
    assert gateway.call("GET", "/sandboxes").json()["code"] == "SUCCESS"
    assert gateway.call("GET", "/v1/sessions", headers=SDK).status_code == 200


# -- host names ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named() -> Iterator[Gateway]:
    """A gateway with the names of a domain, in its certificate, too."""
    with gateways.gateway("process", tls="true", allowed_hosts="*.gw.test") as serving:
        yield serving


def test_host_names_are_enough_to_find_a_sandbox(named: Gateway) -> None:
    def at(host: str, method: str, path: str, **options: Any) -> requests.Response:
        headers = options.pop("headers", {}) | {"Host": host}
        return named.call(method, path, tenant=None, headers=headers, **options)

    key = {"X-API-Key": KEYS["alice"]}
    told = at("api.gw.test", "POST", "/sandboxes", headers=key, json={"templateID": "base"}).json()
    name, token = told["sandboxID"], {"X-Access-Token": told["envdAccessToken"]}
    assert at(f"49999-{name}.gw.test", "GET", "/health", headers=token).json() == "OK"
    assert at(f"49983-{name.upper()}.gw.test:443", "GET", "/health", headers=token).status_code == 204
    assert at(f"8000-{name}.gw.test", "GET", "/", headers=token).json()["port"] == 8000
    assert at(f"49999-{name}.gw.test", "GET", "/health").status_code == 502
    assert at(f"49999-{NOWHERE}.gw.test", "GET", "/health", headers=token).status_code == 502
    for host in (f"49999-{name}.gw.test.evil.test", f"49999-{name}.evil.test", "a.b.gw.test", "gw.test", ".gw.test"):
        assert at(host, "GET", "/health", headers=token).status_code == 421, host
    assert at("api.gw.test", "DELETE", f"/sandboxes/{name}", headers=key).status_code == 204


def test_the_certificate_has_the_names_of_the_domain(named: Gateway) -> None:
    import ssl  # noqa: PLC0415 - used here only

    where = urlsplit(named.url)
    trusting = ssl.create_default_context(cafile=str(named.trusted))
    with socket.create_connection((where.hostname, where.port or 0), timeout=20) as connection:
        for host in ("api.gw.test", f"49999-{NOWHERE}.gw.test"):
            with trusting.wrap_socket(connection, server_hostname=host) as secured:
                assert secured.version()
            break
    with (
        socket.create_connection((where.hostname, where.port or 0), timeout=20) as connection,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        trusting.wrap_socket(connection, server_hostname="gw.test")


# -- code ------------------------------------------------------------------------------------------------------


def test_events_come_as_they_happen_and_in_the_form_that_clients_read(box: Box) -> None:
    code = "import time, pathlib\nprint('a', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n'b'"
    with box.call("POST", "/execute", json={"code": code}, stream=True) as response:
        lines = response.iter_lines()
        assert b'"number_of_executions", "execution_count": 1' in next(lines)
        assert b'"stdout", "text": "a' in next(lines)
        box.run("open('go', 'w').close()", context_id=box.call("POST", "/contexts", json={}).json()["id"])
        assert b'"text": "b", "extra": {}, "is_main_result": true' in next(lines)


def test_nothing_on_the_wire_breaks_a_clients_lines(box: Box) -> None:
    hostile = "\u2028 \u2029 \x85 \x0b \x1c \u00e4 \U0001d11e"
    events = box.run(f"import sys; print({hostile!r}); sys.stderr.write({hostile!r}); {hostile!r}")
    assert [event.get("text") for event in events[1:]] == [f"{hostile}\n", hostile, repr(hostile)[1:-1]]
    display = "from IPython.display import JSON; JSON({'a': float('nan'), 'b': [float('inf')]})"
    (result,) = (event for event in box.run(display) if event["type"] == "result")
    assert result["json"] == {"a": None, "b": [None]}


def test_a_long_text_comes_in_pieces(box: Box) -> None:
    texts = [event["text"] for event in box.run("print('x' * 300_000)") if event["type"] == "stdout"]
    assert max(map(len, texts)) == 64 * 1024
    assert "".join(texts) == "x" * 300_000 + "\n"


def test_a_result_has_the_media_types_that_are_known_and_the_others(box: Box) -> None:
    display = {"text/html": "h", "text/latex": "l", "image/png": "eA==", "application/x-other": {"a": 1}}
    code = f"from IPython.display import display; display({display!r}, raw=True)"
    (result,) = (event for event in box.run(code) if event["type"] == "result")
    assert result["extra"] == {"application/x-other": '{"a":1}'}
    assert (result["html"], result["latex"], result["png"], result["is_main_result"]) == ("h", "l", "eA==", False)
    assert "text" not in result


def test_other_clients_get_no_charts_no_data_and_no_json(gateway: Gateway, session: str) -> None:
    code = "import pandas as pd; pd.DataFrame({'a': [1]})"
    (output,) = gateway.execute(session, code)["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html"}
    assert set(gateway.execute(session, "[1]")["outputs"][0]["data"]) == {"text/plain"}


HOSTILE = "'; import os; os._exit(1) #\" \\ \n${HOME} `id`"


@pytest.mark.parametrize("language", ["python", "javascript", "bash"])
def test_variables_of_a_run_are_no_code_and_gone_afterwards(gateway: Gateway, language: str) -> None:
    read = {
        "python": "import os; print(os.environ.get({!r}), end='')",
        "javascript": "console.log(Deno.env.get({!r}))",
        "bash": "bash -c 'echo \"${{{}-None}}\"'",
    }

    def seen(name: str, **env: str) -> str:
        events = own.run(read[language].format(name), language=language, env_vars=env or None)
        return "".join(event["text"] for event in events if event["type"] == "stdout").removesuffix("\n")

    absent = "undefined" if language == "javascript" else "None"
    with boxed(gateway, envVars={"GLOBAL": HOSTILE}) as own:
        assert seen("GLOBAL") == HOSTILE
        assert seen("OWN", OWN=HOSTILE) == HOSTILE
        assert seen("OWN") == absent
        assert seen("GLOBAL", GLOBAL="another") == "another"
        assert seen("GLOBAL") == HOSTILE
        assert seen("OWN", OWN="") == ""


LARGE_TABLE = "import pandas, numpy; pandas.DataFrame(numpy.random.rand(120_000, 5))"
LARGE_PLOT = "from matplotlib import pyplot; pyplot.plot(range(180_000)); pyplot.show()"
LARGE_SCATTER = "from matplotlib import pyplot; pyplot.scatter(range(180_000), range(180_000)); pyplot.show()"


@pytest.mark.parametrize(
    ("code", "shown", "left_out"),
    [
        (LARGE_TABLE, {"text", "html"}, "data"),
        (LARGE_PLOT, {"text", "png"}, "chart"),
        (LARGE_SCATTER, {"text", "png"}, "chart"),
        ("list(range(1_000_000))", {"text"}, "json"),
        ("['x' * 1000] * 2000", {"text"}, "json"),
        ("[[[]] * 100] * 2000", {"text"}, "json"),
    ],
)
def test_a_further_form_of_something_large_is_left_out_and_the_usual_ones_stay(
    box: Box, code: str, shown: set[str], left_out: str
) -> None:
    (result,) = (event for event in box.run(code) if event["type"] == "result")
    assert shown <= set(result)
    assert left_out not in result
    small = code.replace("120_000", "12").replace("180_000", "18").replace("1_000_000", "10").replace("2000", "2")
    (control,) = (event for event in box.run(small) if event["type"] == "result")
    assert control[left_out]


@pytest.mark.parametrize(
    ("code", "name"),
    [("raise ExceptionGroup('g', [ValueError()])", "ExceptionGroup"), ("%nosuchmagic", "UsageError")],
)
def test_a_failed_run_always_has_its_error(box: Box, code: str, name: str) -> None:
    assert [event["name"] for event in box.run(code) if event["type"] == "error"] == [name]


@process_only
def test_output_that_is_left_out_is_told(box: Box) -> None:
    events = box.run("print('x' * 11_000_000); 1/0")
    printed = sum(len(event["text"]) for event in events if event["type"] == "stdout")
    told = [event["text"] for event in events if event["type"] == "stderr"]
    assert (printed, told) == (
        10 * 1024**2,
        [f"\n[kernel-gateway: {11_000_001 - printed} bytes of output were left out]\n"],
    )
    assert [event["name"] for event in events if event["type"] == "error"] == ["ZeroDivisionError"]


def test_variables_of_a_run_are_gone_after_an_error_and_shift_no_line(box: Box) -> None:
    events = box.run("import os\nos.environ['A']\n1 / 0", env_vars={"A": "b"})
    assert (events[-1]["name"], events[-1]["value"]) == ("ZeroDivisionError", "division by zero")
    assert "----> 3 1 / 0" in events[-1]["traceback"]
    assert "\x1b" not in events[-1]["traceback"]
    assert box.run("assert 'A' not in os.environ")[1:] == []
    answer = box.call("POST", "/execute", json={"code": "1", "env_vars": {"PATH": "/evil"}})
    assert (answer.status_code, "PATH" in answer.text) == (400, True)
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_default_contexts_are_listed_and_start_when_they_are_used(box: Box) -> None:
    listed = box.call("GET", "/contexts").json()
    assert [(each["language"], each["cwd"]) for each in listed] == [
        ("python", "/home/user"),
        ("javascript", "/home/user"),
    ]
    assert box.text("x = 1; x") == box.text("x", language=" PYTHON ") == box.text("x", context_id=listed[0]["id"])
    assert box.text("1 + 1", context_id=listed[1]["id"]) == box.text("1 + 1", language="ts") == "2"
    made = box.call("POST", "/contexts", json={"language": "js", "cwd": "/home/user/there"}).json()
    assert (made["language"], made["cwd"]) == ("javascript", "/home/user/there")
    assert box.call("GET", "/contexts").json() == [*listed, made]
    assert box.call("DELETE", f"/contexts/{listed[0]['id']}").json() is None
    assert box.run("x")[-1]["name"] == "NameError"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"code": "1", "context_id": "nope"}, 404, "Context nope not found"),
        ({"code": "1", "context_id": "x" * 10_000}, 404, "not found"),
        ({"code": "1", "language": "cobol"}, 400, "unknown language"),
        ({"code": "1", "context_id": "x", "language": "python"}, 400, "only one"),
        ({"code": 1}, 400, "code"),
        ({}, 400, "code"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_run_that_cannot_begin_says_why(box: Box, body: dict[str, Any], status: int, words: str) -> None:
    answer = box.call("POST", "/execute", json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/plain; charset=UTF-8")
    assert words in answer.text
    assert box.text("1 + 1") == "2"


@pytest.mark.parametrize(("cwd", "where"), [("/etc", "/etc"), ("/tmp/fine", "/tmp/fine"), ("~/a", None), (None, None)])
def test_a_context_begins_in_any_directory(box: Box, cwd: str | None, where: str | None) -> None:
    made = box.call("POST", "/contexts", json={"cwd": cwd}).json()
    found = box.text("import os; os.getcwd()", context_id=made["id"])
    assert found == where or (where is None and made["cwd"].startswith("/home/user"))
    assert box.call("POST", "/contexts", json={"cwd": "/etc\0"}).status_code == 400


def test_a_language_that_the_image_lacks_is_the_clients_mistake(box: Box) -> None:
    for path in ("/contexts", "/execute"):
        answer = box.call("POST", path, json={"code": "1", "language": "r"})
        assert answer.status_code == 400
        assert "the image kernel-gateway/python:r has it" in answer.text
        assert "memory" not in answer.text


def test_a_kernel_that_dies_ends_its_run_with_the_error_that_clients_know(gateway: Gateway) -> None:
    with boxed(gateway, envVars={"KEPT": "yes"}) as box:
        events = box.run("import os; os._exit(1)", env_vars={"KEPT": "no"})
        assert events[-1]["name"] == "ContextRestarting"
        assert "Context was restarted" in events[-1]["value"]
        assert box.text("import os; os.environ['KEPT']") == "yes"


def test_a_client_that_leaves_interrupts_its_run_and_the_next_one_runs(box: Box) -> None:
    box.run("x = 1")
    code = "x = 2; print('begun', flush=True)\nimport time; time.sleep(300)"
    with box.call("POST", "/execute", json={"code": code, "env_vars": {"A": "b"}}, stream=True) as response:
        lines = response.iter_lines()
        assert b"begun" in next(line for line in lines if b"stdout" in line)
    assert box.text("import os; (x, os.environ.get('A'))") == "(2, None)"


@pytest.mark.parametrize("way", ["kill", "timeout"])
def test_the_connections_of_a_sandbox_that_ends_are_cut(gateway: Gateway, box: Box, way: str) -> None:
    code = "print('begun', flush=True)\nimport time; time.sleep(300)"
    with box.call("POST", "/execute", json={"code": code}, stream=True) as response:
        lines = response.iter_lines()
        assert b"begun" in next(line for line in lines if b"stdout" in line)
        if way == "kill":
            control(gateway, "DELETE", f"/sandboxes/{box.id}")
        else:
            control(gateway, "POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 0})
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            list(lines)
    assert until(lambda: box.call("GET", "/health", ENVD).status_code) == 502


def test_a_run_that_waits_for_its_turn_ends_with_its_sandbox(gateway: Gateway, box: Box) -> None:
    code = "print('begun', flush=True)\nimport time; time.sleep(300)"
    with box.call("POST", "/execute", json={"code": code}, stream=True) as first:
        lines = first.iter_lines()  # its end would close the connection, and interrupt the run
        next(line for line in lines if b"stdout" in line)
        with box.call("POST", "/execute", json={"code": "1"}, stream=True) as second:  # its headers are there at once
            control(gateway, "DELETE", f"/sandboxes/{box.id}")
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(second.iter_lines())


def names(gateway: Gateway) -> set[str]:
    """Return the names of the tenant's sessions."""
    return {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]}


def test_a_sandbox_without_time_ends_at_once_and_unasked(gateway: Gateway, box: Box) -> None:
    box.run("1")
    before = names(gateway)
    assert control(gateway, "POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 0}).status_code == 204
    assert len(names(gateway)) == len(before) - 1
    made = control(gateway, "POST", "/v2/sandboxes", json={"templateID": "base", "timeout": 0}).json()
    assert refused(control(gateway, "GET", f"/sandboxes/{made['sandboxID']}"))[0] == 404


def test_a_sandbox_that_is_killed_cuts_the_requests_that_wait_for_its_kernels(gateway: Gateway) -> None:
    with boxed(gateway) as box, ThreadPoolExecutor() as others:
        hangs = "import time; time.sleep(300)"
        path = {"path": ".ipython/profile_default/startup/hangs.py"}
        assert box.call("POST", "/files", ENVD, params=path, files={"file": hangs}).status_code == 200
        before = names(gateway)  # also those of other tests
        waiting = [others.submit(box.call, "POST", path, json={"code": "1"}) for path in ("/contexts", "/execute")]
        until(lambda: len(names(gateway) - before) == 2)
        assert control(gateway, "DELETE", f"/sandboxes/{box.id}").status_code == 204
        for answer in waiting:
            with pytest.raises(requests.exceptions.ConnectionError):
                answer.result()
