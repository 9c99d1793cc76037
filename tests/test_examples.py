"""Every example of the pages is run by a test, as it is written there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from kernel_gateway.config import load
from kernel_gateway.state_dir import instance_id
from sessions.model.tenant_limits import OwnLimits
from tests.gateways import KEYS, Gateway, gateway

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pages in ("*.md", "docs/**/*.md", "kernel_gateway/*.md", "kernel_image/*.md", "sessions/*.md")
    for path in ROOT.glob(pages)
)
GATEWAY = "http://127.0.0.1:8888"
LIFE = "test_a_gateway_is_installed_upgraded_and_removed_as_the_guide_says"
MONITORING = "kernel_gateway/monitoring/test_monitoring.py"
MCP = "kernel_gateway/cli/test_mcp_stdio.py"
IMAGE = "kernel_image/test_image.py"
IMAGES = "kernel_image/test_other_images.py"
LIBRECHAT = "kernel_gateway/dialects/test_librechat.py"
#: the tests that run each example: page, text of its first line, and the test
RUN_BY = {
    (page, begins): f"tests/{test}"
    for page, begins, test in (
        ("README.md", "make serve", "engine/test_fresh.py::test_make_serve_sets_up_everything"),
        ("README.md", "from pathlib", "test_readme.py::test_the_client_example_works_when_pasted"),
        ("README.md", '{"status"', "test_examples.py::test_the_reply_is_as_shown"),
        ("docs/api.md", '{"name"', "test_readme.py::test_the_example_of_a_session_is_accepted_and_applies"),
        ("docs/api.md", '{"command"', "kernel_gateway/dialects/test_debug.py::test_the_example_of_the_page_stops"),
        ("docs/api.md", "client   ", "kernel_gateway/dialects/test_tools.py::test_the_example_of_the_page_works"),
        (
            "docs/api.md",
            "import tools",
            "kernel_gateway/tools/test_tool_servers.py::test_the_example_of_the_page_works",
        ),
        (
            "docs/operating.md",
            "[tool_servers",
            "kernel_gateway/test_config.py::test_the_example_of_a_tool_server_is_one",
        ),
        ("docs/cli.md", ".venv/bin/kernel-gateway run", "test_examples.py::test_the_command_line_works_as_shown"),
        ("docs/cli.md", "kernel-gateway: SB014", "test_examples.py::test_the_command_line_works_as_shown"),
        ("docs/clients/agentrun.md", "export AGENTRUN", "clients/test_agentrun.py::test_the_example_works_when_pasted"),
        ("docs/clients/agentrun.md", "from agentrun", "clients/test_agentrun.py::test_the_example_works_when_pasted"),
        ("docs/clients/dify.md", "CODE_", "kernel_gateway/dialects/test_dify.py::test_a_code_node_gets_its_result"),
        (
            "docs/clients/librechat.md",
            "LIBRECHAT_",
            f"{LIBRECHAT}::test_a_run_of_librechat_keeps_its_variables_and_files",
        ),
        ("docs/clients/librechat.md", "openssl", f"{LIBRECHAT}::test_keys_made_as_shown_verify_tokens"),
        ("docs/clients/librechat.md", "CODEAPI_", f"{LIBRECHAT}::test_keys_made_as_shown_verify_tokens"),
        (
            "docs/clients/open_webui.md",
            "export CODE_",
            "clients/test_open_webui.py::test_a_run_answers_with_output_result_and_image",
        ),
        (
            "docs/clients/open_terminal.md",
            "kernel-gateway keys",
            "kernel_gateway/dialects/test_open_terminal.py::test_the_lines_of_the_page_are_right",
        ),
        (
            "docs/clients/open_terminal.md",
            "export TERMINAL",
            "kernel_gateway/dialects/test_open_terminal.py::test_the_lines_of_the_page_are_right",
        ),
        (
            "docs/clients/dynamic_sessions.md",
            "from autogen_ext",
            "clients/test_dynamic_sessions.py::test_autogens_client_of_dynamic_sessions_runs_code_with_files",
        ),
        ("docs/clients/e2b.md", "export E2B", "clients/test_e2b.py::test_the_example_works_when_pasted"),
        ("docs/clients/e2b.md", "from e2b", "clients/test_e2b.py::test_the_example_works_when_pasted"),
        (
            "docs/clients/jupyter.md",
            "c.ServerApp",
            "clients/test_jupyter_files.py::test_browser_and_cells_share_the_files_of_a_session",
        ),
        (
            "docs/clients/jupyter.md",
            "export JUPYTER_GATEWAY_URL",
            "clients/test_nbclient.py::test_nbconvert_runs_a_notebook_as_shown",
        ),
        (
            "docs/clients/jupyter.md",
            "from kernel_gateway.for_jupyter",
            "clients/test_nbclient.py::test_nbclient_and_papermill_run_notebooks_as_shown",
        ),
        ("docs/clients/mcp.md", '{"mcpServers"', f"{MCP}::test_the_configurations_of_the_page_work"),
        (
            "docs/clients/python.md",
            "from kernel_gateway.client",
            "kernel_gateway/client/test_client.py::test_the_example_of_the_page_works_when_pasted",
        ),
        (
            "docs/clients/python.md",
            "def search",
            "kernel_gateway/client/test_client_tools.py::test_the_example_of_the_page_works_when_pasted",
        ),
        (
            "docs/kubernetes.md",
            "helm install",
            "cluster/test_chart.py::test_a_release_is_installed_upgraded_moved_and_removed",
        ),
        (
            "docs/monitoring.md",
            "# prometheus.yml",
            f"{MONITORING}::test_prometheus_accepts_the_configuration_of_the_page",
        ),
        ("docs/network.md", "make egress-image", "test_examples.py::test_hosts_are_listed_as_shown"),
        ("docs/operating.md", "python3 -m venv", f"engine/test_fresh.py::{LIFE}"),
        ("docs/operating.md", "/opt/kernel-gateway/bin/pip", f"engine/test_fresh.py::{LIFE}"),
        ("docs/operating.md", "make wheel", "test_release.py::test_an_installed_wheel_serves_and_runs_cells"),
        ("docs/operating.md", "systemctl disable", f"engine/test_fresh.py::{LIFE}"),
        ("docs/operating.md", "curl --silent", "test_examples.py::test_the_session_of_a_container_is_found_as_shown"),
        ("docs/packages.md", "from reportlab", f"{IMAGE}::test_pdfs_of_reportlab_have_chinese_and_emoji"),
        ("docs/packages.md", "make image", f"{IMAGES}::test_the_slim_image_has_what_is_added"),
        ("docs/packages.md", "FROM ", f"{IMAGES}::test_an_image_of_ones_own_adds_a_package"),
        ("docs/packages.md", "docker build", f"{IMAGES}::test_an_image_of_ones_own_adds_a_package"),
        ("docs/providers.md", "curl -X POST", "test_examples.py::test_a_provider_is_configured_as_shown"),
        ("docs/providers.md", "$ echo", "test_examples.py::test_one_program_runs_as_shown"),
        ("docs/settings.md", "# gateway.toml", "test_readme.py::test_the_example_of_a_file_with_settings_is_accepted"),
        ("docs/state.md", "curl -H", "kernel_gateway/test_undo.py::test_the_example_of_the_page_works"),
        (
            "docs/ports.md",
            "import requests",
            "kernel_gateway/dialects/test_ports.py::test_the_example_of_the_page_works",
        ),
        (
            "docs/tenants.md",
            ".venv/bin/kernel-gateway keys",
            "test_examples.py::test_keys_are_made_and_revoked_as_shown",
        ),
        (
            "docs/tenants.md",
            ".venv/bin/kernel-gateway tenants",
            "test_examples.py::test_limits_of_a_tenant_are_changed_as_shown",
        ),
        ("docs/tenants.md", "[tenants.", "test_examples.py::test_limits_of_a_tenant_are_fixed_as_shown"),
    )
}

#: what one may paste from the sentences and tables of the README, and the test that runs it
PASTED = {
    text: f"tests/{test}"
    for text, test in {
        "make engine": "engine/test_fresh.py::test_make_serve_sets_up_everything",
        "make serve": "engine/test_fresh.py::test_make_serve_sets_up_everything",
        "make bench": "test_makefile.py::test_bench_measures_also_what_needs_no_engine",
        "make serve ISOLATION=process": "test_examples.py::test_the_commands_in_the_readme_work_as_written",
        ".venv/bin/kernel-gateway run -s demo -c 'df.describe()'": "test_examples.py::test_the_reply_is_as_shown",
        ".venv/bin/kernel-gateway doctor": "test_examples.py::test_the_commands_in_the_readme_work_as_written",
        "kernel-gateway doctor": "test_examples.py::test_the_commands_in_the_readme_work_as_written",
        "doctor --prove": "engine/test_prove.py::test_all_works_on_a_whole_engine",
        "--gateway-url=http://127.0.0.1:8888 --GatewayClient.auth_token=KEY": "clients/front.py::jupyter_server",
        "http://any:KEY@127.0.0.1:8888": "test_examples.py::test_a_key_in_a_url_works_as_written",
        "http://127.0.0.1:8888/mcp": "kernel_gateway/dialects/test_mcp.py::test_only_a_key_opens_it_also_in_the_query",
        "kernel-gateway mcp": f"{MCP}::test_lines_reach_a_gateway_and_its_answers_come_back",
        "Authorization: Bearer KEY": "test_examples.py::test_the_commands_in_the_readme_work_as_written",
    }.items()
}
#: how such a text begins
PASTEABLE = ("make ", ".venv/", "doctor ", "kernel-gateway ", "--", "http://", "Authorization:")


def blocks(page: str) -> list[str]:
    """Return the examples of a page: all code except diagrams."""
    found = re.findall(r"^```(\w+).*\n((?:.*\n)*?)```$", (ROOT / page).read_text(), re.MULTILINE)
    return [code for language, code in found if language != "mermaid"]


def example(page: str, begins: str) -> list[str]:
    """Return the examples of a page that begin with these words."""
    found = [block for block in blocks(page) if block.startswith(begins)]
    assert found
    return found


def shell(code: str, **environment: str) -> str:
    """Run shell commands with this environment's programs in place of those of a checkout; return what they print."""
    code = code.replace(".venv/bin/kernel-gateway", f"{sys.executable} -m kernel_gateway")
    done = subprocess.run(
        ["bash", "-eu", "-c", code],
        env=os.environ | environment,  # noqa: TID251 - a child gets this environment, and settings on top
        capture_output=True,
        text=True,
        timeout=500,  # pytest ends most tests earlier
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shared() -> Iterator[Gateway]:
    """A gateway that the examples share."""
    with gateway("process") as serving:
        yield serving


@pytest.fixture
def serving(shared: Gateway) -> Iterator[Gateway]:
    """This gateway, which has no sessions."""
    yield shared
    while sessions := shared.call("GET", "/v1/sessions").json()["sessions"]:
        for session in sessions:
            shared.call("DELETE", f"/v1/sessions/{session['name']}")


def test_each_example_is_run_by_a_test_that_exists() -> None:
    for page in PAGES:
        for block in blocks(page):
            tests = [test for (where, words), test in RUN_BY.items() if where == page and block.startswith(words)]
            assert len(tests) == 1, f"{page}: {block[:60]!r} is run by {tests or 'no test'}"
    for (page, begins), test in RUN_BY.items():
        assert example(page, begins)
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_what_the_readmes_sentences_offer_to_paste_is_run_by_a_test_that_exists() -> None:
    sentences = re.sub("```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert {text for text in re.findall("`([^`]+)`", sentences) if text.startswith(PASTEABLE)} == PASTED.keys()
    for test in PASTED.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_the_commands_in_the_readme_work_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLAGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the `make test` that runs this
        monkeypatch.delenv(name, raising=False)
    make, _, isolation = "make serve ISOLATION=process".partition(" serve ")
    # `--old-file`, because tests must not change the environment in which they run
    command = (make, "--silent", "--old-file=.venv/.setup")
    with gateway("process", isolation, command=command, state_dir=str(tmp_path)) as serving:
        named = {"Authorization": f"Bearer {KEYS['alice']}"}
        assert serving.call("GET", "/v1/sessions", tenant=None, headers=named).status_code == 200
        place = {"KERNEL_GATEWAY_URL": serving.url, "KERNEL_GATEWAY_KEY": KEYS["alice"]}
        serving.execute("demo", "import pandas as pd; df = pd.DataFrame({'x': [1, 2, 3]})")
        assert "mean" in shell(".venv/bin/kernel-gateway run -s demo -c 'df.describe()'", **place)
        place = {"KERNEL_GATEWAY_ISOLATION": "process", "KERNEL_GATEWAY_STATE_DIR": str(tmp_path / "other")}
        assert re.search(
            "^(all is well|kernels can run)", shell(".venv/bin/kernel-gateway doctor", **place), re.MULTILINE
        )


def test_a_key_in_a_url_works_as_written(serving: Gateway) -> None:
    program = {"code_b64": b64encode(b"def main(): return 42").decode(), "language": "python", "arguments": {}}
    for key, status in ((KEYS["alice"], 200), ("unknown", 401)):
        endpoint = "http://any:KEY@127.0.0.1:8888".replace("127.0.0.1:8888", serving.url.partition("//")[2])
        answer = requests.post(f"{endpoint.replace('KEY', key)}/run", json=program, timeout=60)
        assert answer.status_code == status, answer.text


def test_the_reply_is_as_shown(serving: Gateway) -> None:
    [shown] = map(json.loads, example("README.md", '{"status"'))
    serving.execute("demo", "import pandas as pd; df = pd.DataFrame({'x': [1, 2, 3]})")
    reply = serving.execute("demo", "df.x.sum()")
    described = subprocess.run(
        [sys.executable, "-m", "kernel_gateway", "run", "-s", "demo", "-c", "df.describe()"],
        env=os.environ | {"KERNEL_GATEWAY_URL": serving.url, "KERNEL_GATEWAY_KEY": KEYS["alice"]},  # noqa: TID251
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    varies = ("duration_ms", "session_id")
    assert shown.keys() == reply.keys()
    assert shown | dict.fromkeys(varies) == reply | dict.fromkeys(varies)
    assert "run -s demo -c 'df.describe()'" in (ROOT / "README.md").read_text()
    assert "mean" in described.stdout


def test_keys_are_made_and_revoked_as_shown(tmp_path: Path) -> None:
    first, page = example("docs/tenants.md", ".venv/bin/kernel-gateway keys")
    state = {"KERNEL_GATEWAY_STATE_DIR": str(tmp_path)}
    instance_id(tmp_path)  # as a gateway does at its start
    *others, revoke = first.splitlines()
    *secrets, _head, user, _admin, job, front = shell("\n".join(others), **state).splitlines()
    assert len({*secrets}) == 4
    assert [row.split()[-1] for row in (user, job, front)] == ["team-a", "team-a", "webui"]
    assert "nightly job" in job
    assert "frontend" in front
    shell(revoke.replace(" ID ", f" {user.split()[0]} "), **state)
    shell(page, **state)
    _head, *rows = shell(".venv/bin/kernel-gateway keys list", **state).splitlines()
    kept = [("admin", "ops"), ("user", "team-a"), ("frontend", "webui"), ("admin", "ops")]
    assert [(row.split()[1], row.split()[-1]) for row in rows] == kept


@pytest.mark.curl
def test_limits_of_a_tenant_are_changed_as_shown(serving: Gateway) -> None:
    [code] = example("docs/tenants.md", ".venv/bin/kernel-gateway tenants limits")
    key = serving.admin_key()
    code = code.replace(GATEWAY, serving.url).replace("Bearer KEY", f"Bearer {key}")
    said = shell(code, KERNEL_GATEWAY_URL=serving.url, KERNEL_GATEWAY_KEY=key)
    changed, answered = said.split("{", 1)
    told = json.loads("{" + answered)
    assert [told[name]["value"] for name in ("sessions", "memory", "cpus")] == [5, 256 * 1024**2, 1.0]
    assert "team-a  sessions=5 memory=256m" in changed.splitlines()


def test_a_tenant_is_removed_as_shown(serving: Gateway) -> None:
    [code] = example("docs/tenants.md", ".venv/bin/kernel-gateway tenants remove")
    add = [sys.executable, "-m", "kernel_gateway", "keys", "add", "team-a", "--state-dir", str(serving.state_dir)]
    subprocess.run(add, check=True, capture_output=True)
    said = shell(code, KERNEL_GATEWAY_URL=serving.url, KERNEL_GATEWAY_KEY=serving.admin_key())
    assert "keys       1" in said.splitlines()


def test_limits_of_a_tenant_are_fixed_as_shown(tmp_path: Path) -> None:
    [code] = example("docs/tenants.md", "[tenants.")
    (tmp_path / "gateway.toml").write_text(code)
    fixed = load({}, tmp_path / "gateway.toml").fixed_limits
    assert fixed == {"team-a": OwnLimits("team-a", sessions=5, memory=256 * 1024**2)}


@pytest.mark.curl
def test_a_provider_is_configured_as_shown(serving: Gateway) -> None:
    [code] = example("docs/providers.md", "curl -X POST")
    with gateway("process", admin_key="the-admins-own-key") as serving_here:
        server = f'"api_url": "{serving.url}", "sandbox_url": "{serving.url}"'
        code = code.replace('"e2b_..."', f'"{KEYS["alice"]}", {server}')
        assert server in code
        said = shell(code.replace(GATEWAY, serving_here.url), ADMIN_KEY="the-admins-own-key")
    assert json.loads(said) == {"message": "Configuration saved"}


def test_one_program_runs_as_shown(serving: Gateway, tmp_path: Path) -> None:
    [block] = example("docs/providers.md", "$ echo")
    code, shown = block.removeprefix("$ ").splitlines()
    place = {"KERNEL_GATEWAY_URL": serving.url, "KERNEL_GATEWAY_KEY": KEYS["alice"]}
    said = shell(code, KERNEL_GATEWAY_STATE_DIR=str(tmp_path), **place)
    assert said.strip() == shown


def test_the_command_line_works_as_shown(serving: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = example("docs/cli.md", ".venv/bin/kernel-gateway run")
    [refusal] = example("docs/cli.md", "kernel-gateway: SB014")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KERNEL_GATEWAY_URL", serving.url)
    monkeypatch.setenv("KERNEL_GATEWAY_KEY", KEYS["alice"])
    *used, end = code.splitlines()
    said = shell("\n".join(used)).splitlines()
    refused = subprocess.run(
        [sys.executable, "-m", "kernel_gateway", "files", "get", "-s", "demo", "absent"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shell(end)
    assert serving.call("GET", "/v1/sessions").json()["sessions"] == []
    assert (refused.returncode, refused.stderr) == (1, refusal)
    assert said[0] == "42"
    assert said[1].endswith("data.csv")
    assert "plots/output-1.png" in said
    assert said[-1].split()[:3] == ["demo", "python", "idle"]
    assert (tmp_path / "data.csv").read_text() == "a,b\n"
    assert (tmp_path / "plots/output-1.png").read_bytes().startswith(b"\x89PNG")
    assert "x = 40 + 2" in (tmp_path / "demo.ipynb").read_text()


def test_hosts_are_listed_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/network.md").read_text()
    for name, value in re.findall(r"^(KERNEL_GATEWAY_\w+)=(\S+)", page, re.MULTILINE):
        monkeypatch.setenv(name, value)
    given = load({})
    assert given.egress
    assert (given.egress_tenants, given.egress_dns) == (["team-a", "team-b"], ["192.0.2.53"])
    assert given.egress_allow == ["packages.example.org", "data.example.org:8443"]


@pytest.mark.curl
def test_the_session_of_a_container_is_found_as_shown(serving: Gateway) -> None:
    [code] = example("docs/operating.md", "curl --silent")
    serving.execute("mine", "1")
    answer = shell(code.replace(GATEWAY, serving.url), KEY=serving.admin_key())
    [session] = json.loads(answer)["sessions"]
    assert (session["tenant"], session["name"], bool(session["container"])) == ("alice", "mine", True)
