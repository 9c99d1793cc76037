from __future__ import annotations

import re
import tomllib

import pytest

from tests.gateways import KEYS, gateway
from tests.readme import PARTS, ROOT, filled

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", PARTS)
def test_generated_parts_are_up_to_date(path: str) -> None:
    assert filled(path) == (ROOT / path).read_text(), "run `make readme`"


def test_the_client_example_works_when_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    with gateway("process") as serving:
        (serving.state_dir / "key").write_text(KEYS["alice"])
        pasted = example.replace("http://127.0.0.1:8888", serving.url)
        pasted = pasted.replace("~/.local/state/kernel-gateway", str(serving.state_dir))
        assert pasted.count(serving.url) == pasted.count(str(serving.state_dir)) == 1
        exec(compile(pasted, "README.md", "exec"), {})  # noqa: S102 - the example is what is tested
    assert "6" in capsys.readouterr().out


def test_every_make_target_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:`|^)make (\w+)", README, re.MULTILINE))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"serve", "test", "bench"} <= named <= targets


def test_the_science_extra_contains_the_packages_of_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = {
        line
        for path in (ROOT / "kernel_image").rglob("requirements.txt")
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    }
    gateway_has = set(project["dependencies"])
    assert image <= gateway_has | set(project["optional-dependencies"]["science"])
