"""Images besides the usual one: the slim one, and one of the operator's own as docs/packages.md describes it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.backends.base import KERNEL_IMAGE
from tests.gateways import Gateway, gateway
from tests.kernel_image.wheel import write_wheel

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(600)]

OWN = "kernel-gateway/python:own-test"
#: kept, so that the next build is quick
SLIM = "kernel-gateway/python:slim-test"


def packages(serving: Gateway) -> dict[str, str]:
    """Return the versions of the packages for Python code."""
    listed = serving.call("GET", "/v1/languages").json()["languages"]
    (found,) = [each["packages"] for each in listed if each["name"] == "python"]
    return dict(found)


@pytest.fixture
def own_image(tmp_path: Path) -> Iterator[str]:
    """The image that the example makes, with a wheel in place of a package from the internet."""
    (example,) = re.findall(
        r"```dockerfile\n(.*?)```", (KERNEL_IMAGE.parent / "docs/packages.md").read_text(), re.DOTALL
    )
    context = tmp_path / "context"
    context.mkdir()
    wheel = write_wheel(context).name
    first, rest = example.replace(" pint", f" /tmp/{wheel}").split("\n", 1)
    assert wheel in rest
    (context / "Dockerfile").write_text(f"{first}\nCOPY {wheel} /tmp/\n{rest}")
    subprocess.run(["docker", "build", "-q", "-t", OWN, str(context)], check=True, capture_output=True)
    yield OWN
    subprocess.run(["docker", "image", "rm", OWN], check=True, capture_output=True)


def test_an_image_of_ones_own_adds_a_package(own_image: str) -> None:
    with gateway("docker", image=own_image) as serving:
        assert packages(serving)["greeting"] == "1.2"
        assert serving.text("own", "import greeting; print(greeting.hello())") == "from the wheel\n"


def test_a_session_has_the_image_that_it_asked_for(own_image: str, tmp_path: Path) -> None:
    use = "import greeting; print(greeting.hello())"

    def uses_it(serving: Gateway) -> None:
        assert serving.call("GET", "/v1/sessions/other").json()["image"] == own_image
        assert serving.text("other", use) == "from the wheel\n"

    (tmp_path / "state").mkdir()
    with gateway("docker", state_dir=str(tmp_path / "state"), images=f"{own_image},no/such:image") as serving:
        made = serving.call("POST", "/v1/sessions", json={"name": "other", "image": own_image})
        assert (made.status_code, made.json()["image"]) == (201, own_image)
        uses_it(serving)
        assert serving.call("POST", "/v1/sessions/other/restart").status_code == 200
        uses_it(serving)
        assert serving.execute("usual", use)["status"] == "error"
        assert serving.call("GET", "/v1/sessions/usual").json()["image"] is None
        absent = serving.call("POST", "/v1/sessions", json={"image": "no/such:image"})
        assert (absent.status_code, "has to build or pull it" in absent.text) == (502, True)
        serving.process.kill()
        serving.process.wait()
    with gateway("docker", state_dir=str(tmp_path / "state")) as serving:  # the list no longer has it
        uses_it(serving)
        assert serving.call("POST", "/v1/sessions/other/restart").status_code == 200
        uses_it(serving)


def build_slim(**environment: str) -> None:
    built = subprocess.run(
        [KERNEL_IMAGE / "build.sh", "--slim", SLIM],
        env=os.environ | environment,  # noqa: TID251 - a child gets this environment, and more
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]


def test_the_slim_image_has_what_is_added() -> None:
    build_slim(EXTRA="tabulate tqdm")
    with gateway("docker", image=SLIM) as serving:
        assert {"tabulate", "tqdm"} <= packages(serving).keys()
        assert not {"numpy", "pandas", "matplotlib"} & packages(serving).keys()
        assert "1  2" in serving.text("py", "import tabulate; print(tabulate.tabulate([[1, 2]]))")


def test_the_slim_image_runs_all_languages_without_packages() -> None:
    build_slim(EXTRA="")
    with gateway("docker", image=SLIM) as serving:
        assert {"ipykernel", "orjson"} <= packages(serving).keys()
        assert not {"numpy", "pandas", "matplotlib"} & packages(serving).keys()
        codes = {"python": "print(6 * 7)", "javascript": "console.log(6 * 7)", "bash": "echo $((6 * 7))"}
        assert codes.keys() == {each["name"] for each in serving.call("GET", "/v1/languages").json()["languages"]}
        for language, code in codes.items():
            made = serving.call("POST", "/v1/sessions", json={"name": language, "language": language})
            assert made.status_code == 201
            assert serving.text(language, code) == "42\n"
