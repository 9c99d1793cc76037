"""WeKnora's client for remote sandboxes, a Go service over an E2B SDK of its own, by the requests that it sends.

Calls to sandboxes go to one address and keep the host `49983-ID.domain`; the user is in `Authorization: Basic`.
Source: `internal/sandbox` of Tencent/WeKnora, read in November 2026.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.e2b import STREAM, envelope, messages

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
DOMAIN = "sandboxes.test"
#: as `kernel-gateway keys add TENANT --e2b` makes it: this client says in no other way that it is one of E2B's
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
JSON = dict[str, Any]


@dataclass(frozen=True)
class Box:
    """A sandbox, used as the Go client does."""

    gateway: Gateway
    id: str
    token: str

    def call(self, method: str, path: str, user: str = "user", **options: Any) -> requests.Response:
        """Send a request to the sandbox's host."""
        headers = {
            "Host": f"49983-{self.id}.{DOMAIN}",
            "X-Access-Token": self.token,
            "Authorization": f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}",
        }
        return self.gateway.call(method, path, tenant=None, headers=headers | options.pop("headers", {}), **options)

    def entry(self, method: str, **body: Any) -> tuple[int, JSON]:
        """Call the service for files."""
        answer = self.call("POST", f"/filesystem.Filesystem/{method}", json=body)
        return answer.status_code, answer.json()

    def start(self, command: str, user: str = "user", milliseconds: int = 60_000, **options: Any) -> requests.Response:
        """Start a command in a login shell."""
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command], "cwd": "/workspace"}
        body = envelope({"process": process | {"envs": {"WEKNORA_SKILL_OUTPUT_DIR": "/workspace/output"}}})
        headers = STREAM | {"Connect-Timeout-Ms": str(milliseconds)}
        return self.call("POST", "/process.Process/Start", user, data=body, headers=headers, **options)

    def run(self, command: str, user: str = "user") -> tuple[int, str]:
        """Run a command to its end, and return its exit code and its output."""
        answer = self.start(command, user)
        events = [message["event"] for _, message in messages(iter([answer.content])) if "event" in message]
        data = [event["data"] for event in events if "data" in event]
        output = b"".join(base64.b64decode(text) for piece in data for text in piece.values())
        (end,) = (event["end"] for event in events if "end" in event)
        return end["exitCode"], output.decode()


def control(gateway: Gateway, method: str, path: str, **options: Any) -> requests.Response:
    answer = gateway.call(method, path, tenant=None, headers={"X-API-Key": KEY}, **options)
    assert answer.ok, answer.text
    return answer


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", keys=f"alice:{KEY}", allowed_hosts=f"*.{DOMAIN},127.0.0.1") as serving:
        yield serving
        assert serving.errors() == []


@contextmanager
def made(gateway: Gateway, timeout: int, **more: Any) -> Iterator[Box]:
    body = {
        "templateID": control(gateway, "GET", "/templates").json()[0]["templateID"],
        "timeout": timeout,
        "envVars": {},
        "metadata": {"weknora": "test"},
        "secure": True,
        "allow_internet_access": True,
        "network": {"allowPublicTraffic": True, "allowOut": [], "denyOut": []},
        **more,
    }
    told = control(gateway, "POST", "/sandboxes", json=body).json()
    yield Box(gateway, told["sandboxID"], told["envdAccessToken"])
    assert control(gateway, "POST", f"/sandboxes/{told['sandboxID']}/connect", json={"timeout": 60}).ok
    assert control(gateway, "DELETE", f"/sandboxes/{told['sandboxID']}").status_code == 204


@pytest.fixture(scope="module")
def box(gateway: Gateway) -> Iterator[Box]:
    with made(gateway, 300, autoPause=False) as box:
        yield box


def test_the_service_is_there_and_has_templates_to_choose_from(gateway: Gateway) -> None:
    assert isinstance(control(gateway, "GET", "/v2/sandboxes", params={"limit": 1}).json(), list)
    for template in control(gateway, "GET", "/templates").json():
        fields = {"names", "aliases", "buildID", "buildCount", "envdVersion", "createdAt", "updatedAt"}
        assert fields <= template.keys()
        one = control(gateway, "GET", f"/templates/{template['templateID']}").json()
        assert (one["templateID"], one["buildStatus"]) == (template["templateID"], "ready")
        alias = control(gateway, "GET", f"/templates/aliases/{template['aliases'][0]}").json()
        assert alias["templateID"] == template["templateID"]


def test_a_sandbox_keeps_its_id_and_is_found_in_the_list(gateway: Gateway, box: Box) -> None:
    assert control(gateway, "POST", f"/sandboxes/{box.id}/connect", json={"timeout": 300}).json()["sandboxID"] == box.id
    assert control(gateway, "GET", f"/sandboxes/{box.id}").json()["sandboxID"] == box.id
    query = {"limit": 100, "metadata": "weknora=test", "state": "running,paused"}
    assert box.id in [each["sandboxID"] for each in control(gateway, "GET", "/v2/sandboxes", params=query).json()]
    with made(gateway, 300) as other:
        first = control(gateway, "GET", "/v2/sandboxes", params=query | {"limit": 1})
        token = {"nextToken": first.headers["X-Next-Token"]}
        second = control(gateway, "GET", "/v2/sandboxes", params=query | {"limit": 1} | token)
        assert [each.json()[0]["sandboxID"] for each in (first, second)] == [other.id, box.id]


def test_a_script_runs_and_leaves_its_files(box: Box) -> None:
    status, told = box.entry("MakeDir", path="/workspace/output")
    assert (status, told["entry"]["path"], told["entry"]["owner"]) == (200, "/workspace/output", "user")
    assert box.run('chown user:user "/workspace/output" && chmod 775 "/workspace/output"', "root") == (0, "")
    script = b"import os, sys; open(os.environ['WEKNORA_SKILL_OUTPUT_DIR'] + '/a.txt', 'w').write(sys.stdin.read())"
    for path, content in (("/workspace/script.py", script), ("/workspace/input/in.txt", b"in")):
        sent = box.call("POST", "/files", params={"path": path}, files={"file": content})
        assert (sent.status_code, sent.json()[0]["path"]) == (200, path)
    assert box.call("GET", "/files", params={"path": "/workspace/input/in.txt"}).content == b"in"
    assert box.run("python3 /workspace/script.py <<'END'\ngiven\nEND") == (0, "")
    _, listed = box.entry("ListDir", path="/workspace/output", depth=1)
    (entry,) = listed["entries"]
    assert (entry["path"], entry["mode"]) == ("/workspace/output/a.txt", 0o644)
    assert box.call("GET", "/files", params={"path": entry["path"]}).content == b"given\n"
    assert box.entry("Stat", path="/workspace/output")[1]["entry"]["mode"] == 0o775
    assert box.entry("Remove", path="/workspace/input/in.txt")[0] == 200
    assert box.entry("Stat", path="/workspace/input/in.txt")[0] == 404


def test_root_is_the_only_users_other_name(box: Box) -> None:
    assert box.run("id -un", "root") == (0, "user\n")
    code, said = box.run("chown root /workspace; touch /etc/x; mount -t tmpfs none /mnt", "root")
    assert code != 0
    assert [words in said for words in ("Operation not permitted", "Permission denied")] == [True, True]
    refused = box.start("true", "postgres")
    assert "no user 'postgres'" in refused.text


def test_a_script_over_its_time_ends_with_its_process(box: Box) -> None:
    running = "pgrep -fc '^sleep 98765'; true"
    with box.start("sleep 98765 & sleep 98765", milliseconds=2000, stream=True) as answer:
        assert "start" in next(messages(answer.iter_content(None)))[1]["event"]
        assert box.run(running)[1] != "0\n"
        time.sleep(2)
    until(lambda: box.run(running) == (0, "0\n"))


def test_a_command_wakes_what_was_paused_at_its_timeout(gateway: Gateway) -> None:
    resume = {"autoPause": True, "autoPauseMemory": True, "autoResume": {"enabled": True}}
    with made(gateway, 3, **resume) as box:
        box.call("POST", "/files", params={"path": "/workspace/kept"}, files={"file": b"kept"})
        box.start("exec -a counter sleep 4321", milliseconds=600_000, stream=True).close()
        query = {"metadata": "weknora=test", "state": "paused"}
        until(lambda: [each["sandboxID"] for each in control(gateway, "GET", "/v2/sandboxes", params=query).json()])
        assert box.run("cat /workspace/kept; pgrep -fc '^counter 4321'") == (0, "kept1\n")
        told = control(gateway, "GET", f"/sandboxes/{box.id}").json()
        assert (told["state"], told["lifecycle"]) == ("running", {"autoResume": True, "onTimeout": "pause"})
