"""The languages over HTTP, with what is installed in real kernels; and what says that there is no more to install."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernel_image.no_network import POLICY
from tests.gateways import Gateway, gateway, text_of
from tests.kernel_gateway import agentrun, e2b
from tests.kernel_gateway.calls import failure, process_only
from tests.kernel_gateway.sockets import connected

#: only their images have these languages, but a developer's own machine may
R_IS_HERE = shutil.which("R") is not None
RUBY_IS_HERE = shutil.which("ruby") is not None
SHOW = """
import json, platform
from importlib.metadata import distributions
print(json.dumps([platform.python_version(), {each.name: each.version for each in distributions()}]))
"""


def test_each_language_is_listed_with_its_version_and_packages(gateway: Gateway, session: str) -> None:
    listed = {each["name"]: each for each in gateway.call("GET", "/v1/languages").json()["languages"]}
    more = {name for name, is_here in {"r": R_IS_HERE, "ruby": RUBY_IS_HERE}.items() if is_here}
    assert set(listed) == {"bash", "javascript", "python"} | more
    python, javascript = listed["python"], listed["javascript"]
    assert (python["kernelspec"], python["aliases"]) == ("python3", ["py"])
    version, packages = json.loads(gateway.text(session, SHOW))
    seen: dict[str, str] = {canonicalize_name(name): version for name, version in packages.items()}
    assert Version(javascript["version"]) == Version(seen.pop("deno"))
    assert javascript["packages"] == {}
    assert listed["bash"]["version"] == gateway.text(session, "!bash -c 'echo ${BASH_VERSION%%(*}'").strip()
    assert python["version"] == version
    assert python["packages"].items() <= seen.items()
    assert {"numpy", "pandas", "matplotlib"} <= python["packages"].keys()


@pytest.mark.skipif(R_IS_HERE, reason="R is installed here")
@process_only
def test_a_language_that_is_not_installed_is_refused_by_every_dialect_with_the_image_that_has_it(
    gateway: Gateway,
) -> None:
    with agentrun.boxed(gateway) as box, e2b.boxed(gateway) as other:
        answers = [
            gateway.call("POST", "/v1/sessions", json={"name": "statistics", "language": "r"}),
            gateway.call("POST", "/v1/sessions/statistics/execute", json={"code": "1", "language": "r"}),
            gateway.call("POST", "/api/kernels", json={"name": "ir"}),
            box.call("POST", "/contexts", json={"language": "r"}),
            box.call("POST", "/contexts/execute", json={"code": "1", "language": "r"}),
            other.call("POST", "/contexts", json={"language": "r"}),
            other.call("POST", "/execute", json={"code": "1", "language": "r"}),
        ]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert "R is not installed here; the image kernel-gateway/python:r has it" in answer.text
    assert failure(gateway.call("GET", "/v1/sessions/statistics"))[0] == 404


@process_only
def test_an_execute_makes_its_session_in_the_language_that_it_names(gateway: Gateway, session: str) -> None:
    assert text_of(gateway.execute(session, "x=4; echo $x", language="SH")) == "4\n"
    assert gateway.call("GET", f"/v1/sessions/{session}").json()["language"] == "bash"
    assert text_of(gateway.execute(session, "echo $x", language="bash")) == "4\n"
    assert text_of(gateway.execute(session, "echo $x")) == "4\n"


@process_only
@pytest.mark.parametrize("fields", [{}, {"wait": False}, {"if_incarnation": 1}])
def test_an_execute_in_another_language_than_its_session_has_runs_nothing_and_says_what_to_do(
    gateway: Gateway, session: str, fields: dict[str, Any]
) -> None:
    gateway.execute(session, "x = 1")
    for language, message in (
        ("bash", f"session '{session}' runs python: use another session, or end this one first"),
        ("cobol", "unknown language 'cobol'; known: "),
    ):
        body = {"code": "x=2", "language": language, **fields}
        refused = gateway.call("POST", f"/v1/sessions/{session}/execute", json=body)
        assert failure(refused) == (400, "SB002")
        assert refused.json()["error"]["message"].startswith(message)
        assert refused.json()["error"]["details"]["field"] == "language"
    assert gateway.text(session, "x") == "1"


@process_only
def test_an_execute_in_an_unknown_language_makes_no_session(gateway: Gateway, session: str) -> None:
    refused = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "1", "language": "cobol"})
    assert failure(refused) == (400, "SB002")
    assert failure(gateway.call("GET", f"/v1/sessions/{session}")) == (404, "SB011")


@process_only
async def test_a_frame_in_another_language_than_its_session_has_is_refused(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.send(code="1", language="bash")
        refused = (await socket.until("error"))[-1]
        assert (refused["error"]["code"], refused["error"]["details"]["field"]) == ("SB002", "language")
        await socket.send(code="1", language="py")
        assert (await socket.until("result"))[-1]["status"] == "ok"


@process_only
@pytest.mark.parametrize(
    ("kernelspec", "language", "title"), [("bash", "bash", "Bash"), ("deno", "javascript", "JavaScript (Deno)")]
)
def test_jupyter_clients_see_a_language_with_its_logo(
    gateway: Gateway, kernelspec: str, language: str, title: str
) -> None:
    model = gateway.call("GET", "/api/kernelspecs").json()["kernelspecs"][kernelspec]
    assert (model["spec"]["language"], model["spec"]["display_name"]) == (language, title)
    assert gateway.call("GET", model["resources"]["logo-svg"]).content.startswith(b"<svg ")


@pytest.mark.gate
@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_pip_and_requests_say_at_once_that_there_is_no_network(gateway: Gateway, session: str) -> None:
    assert POLICY in gateway.text(session, "!pip install nothing")
    error = gateway.execute(session, "%pip install nothing")["outputs"][-1]
    assert (error["ename"], error["evalue"]) == ("PipFailed", POLICY)
    asked = gateway.execute(session, "import requests; requests.get('https://example.com')")
    assert POLICY in asked["outputs"][-1]["evalue"]


@pytest.mark.full
def test_the_list_waits_for_the_sandbox() -> None:
    with gateway("docker", must_be_ready=False, image="no/such:image") as serving:
        assert failure(serving.call("GET", "/v1/languages")) == (503, "SB001")
