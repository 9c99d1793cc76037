"""The languages over HTTP, with what is installed in real kernels; and what says that there is no more to install."""

from __future__ import annotations

import json

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from kernel_image.no_network import POLICY
from tests.gateways import Gateway, gateway
from tests.kernel_gateway.wire import failure

SHOW = """
import json, platform
from importlib.metadata import distributions
print(json.dumps([platform.python_version(), {each.name: each.version for each in distributions()}]))
"""


def test_each_language_is_listed_with_its_version_and_packages(gateway: Gateway, session: str) -> None:
    listed = {each["name"]: each for each in gateway.call("GET", "/v1/languages").json()["languages"]}
    assert set(listed) == {"bash", "javascript", "python"}
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


@pytest.mark.gate
@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_pip_and_requests_say_at_once_that_there_is_no_network(gateway: Gateway, session: str) -> None:
    assert POLICY in gateway.text(session, "!pip install nothing")
    asked = gateway.execute(session, "import requests; requests.get('https://example.com')")
    assert POLICY in asked["outputs"][-1]["evalue"]


@pytest.mark.full
def test_the_list_waits_for_the_sandbox() -> None:
    with gateway("docker", must_be_ready=False, image="no/such:image") as serving:
        assert failure(serving.call("GET", "/v1/languages")) == (503, "SB001")
