from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from kernel_gateway.config import Settings, load
from tests.clients.tested import TESTED, passed_in
from tests.gateways import KEYS, gateway
from tests.readme import CHART_VALUES, FIGURES, PARTS, ROOT, clients, figures, filled

MIB = 1024**2
README = (ROOT / "README.md").read_text()
PAGES = [README, *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", [*PARTS, CHART_VALUES])
def test_generated_parts_are_up_to_date(path: str) -> None:
    assert filled(path) == (ROOT / path).read_text(), "run `make readme`"


def test_every_file_of_tests_with_a_client_is_in_the_table_of_clients() -> None:
    named = {test.partition("::")[0] for tests in TESTED.values() for test in tests}
    assert {name for name in named if "/" not in name} == {
        path.name for path in (ROOT / "tests/clients").glob("test_*.py")
    }
    assert "| `nbclient` | >=0.10.2 | gVisor, in `make test` |" in clients()


def test_a_client_has_passed_when_all_cases_of_its_tests_have(tmp_path: Path) -> None:
    [client, *_] = [name for name, tests in TESTED.items() if len(tests) == 1]
    file, _, test = TESTED[client][0].partition("::")
    case = f'<testcase classname="tests.clients.{Path(file).stem}" name="{test}[%s]">%s</testcase>'

    def passed(*cases: str) -> bool:
        (tmp_path / "report.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        return client in passed_in([tmp_path / "report.xml"])

    assert passed(case % ("a", ""))
    assert passed(case % ("a", "<failure/>"), case % ("a", "")), "run again"
    assert not passed(case % ("a", ""), case % ("b", "<failure/>"))
    assert not passed(case % ("a", "<skipped/>"))
    assert not passed()


def test_the_client_example_works_when_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    with gateway("process") as serving:
        (serving.state_dir / "key").write_text(KEYS["alice"])
        pasted = example.replace("http://127.0.0.1:8888", serving.url)
        pasted = pasted.replace("~/.local/state/kernel-gateway", str(serving.state_dir))
        assert pasted.count(serving.url) == pasted.count(str(serving.state_dir)) == 1
        exec(compile(pasted, "README.md", "exec"), {})  # noqa: S102 - the example is what is tested
    assert "6" in capsys.readouterr().out


def test_the_example_of_a_session_is_accepted_and_applies() -> None:
    [example] = re.findall(r"```json session\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    with gateway("process") as serving:
        response = serving.call("POST", "/v1/sessions", data=example)
        assert response.status_code == 201, response.text
        told, asked = response.json(), json.loads(example)
        assert {name: told[name] for name in ("name", "language", "idle_timeout")}.items() <= asked.items()
        assert told["limits"] == {"memory": 256 * MIB, "cpus": 0.5, "processes": 32, "disk": 64 * MIB, "output": MIB}
        assert serving.text(asked["name"], "import os; os.environ['TZ']") == "'UTC'"


def test_the_example_of_a_file_with_settings_is_accepted(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/settings.md").read_text(), re.DOTALL)
    (tmp_path / "gateway.toml").write_text(example)
    given, names = load({}, tmp_path / "gateway.toml"), tomllib.loads(example).keys()
    assert set(given.keys.values()) == {"team-a", "team-b"}
    assert given.limits.memory == 1024**3
    assert [name for name in names if getattr(given, name) == Settings.model_fields[name].default] == ["cpus"]


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 200


def test_what_was_not_measured_says_so_in_the_figures_of_the_readme() -> None:
    assert figures("").count("| not measured |") == len(FIGURES)
    assert "not measured" not in figures()


def test_every_make_target_that_is_named_exists() -> None:
    named = {target for page in PAGES for target in re.findall(r"(?:`|^)make ([\w-]+)", page, re.MULTILINE)}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"serve", "test", "bench"} <= named <= targets


def test_the_science_extra_contains_the_packages_of_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = {
        line
        for path in (ROOT / "kernel_image").rglob("requirements*.txt")
        for line in path.read_text().splitlines()
        if line and not line.startswith(("#", "-r"))
    }
    gateway_has = set(project["dependencies"])
    assert image <= gateway_has | set(project["optional-dependencies"]["science"])
