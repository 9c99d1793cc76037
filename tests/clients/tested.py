"""Which clients are tested, by which tests, and on which day these have last passed; `tests/readme.py` tabulates it.

`python -m tests.clients.tested` runs the tests and notes the day. `--from REPORT …` takes the reports of runs that were
made already (pytest's `--junitxml`). Further arguments are pytest's.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
#: client → day on which all its tests have last passed
PASSED = FOLDER / "passed.json"

#: client → tests that drive it, by their files from this folder on. The first one's marks say where it runs. A client
#: is a package of pyproject.toml or of a package.json in this folder; of one that no registry has, the calls are
#: replayed.
TESTED: dict[str, tuple[str, ...]] = {
    "ag2": ("test_autogen.py::test_an_agent_runs_its_blocks",),
    "agentrun-sdk": ("test_agentrun.py::test_a_sandbox_lives_its_whole_life",),
    "agno": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "autogen-ext": (
        "test_dynamic_sessions.py::test_autogens_client_of_dynamic_sessions_runs_code_with_files",
        "test_autogen.py::test_the_executor_works_as_a_tool_of_agents",
    ),
    "crewai-tools": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "Dify, by its requests": (
        "../kernel_gateway/dialects/test_dify.py::test_the_nodes_of_a_workflow_get_their_results",
    ),
    "dify-sandbox": ("test_dynamic_sessions.py::test_a_client_works_as_it_is_installed",),
    "e2b-code-interpreter": (
        "test_e2b.py::test_a_sandboxed_sandbox_lives_its_whole_life",
        "test_e2b_snapshots.py::test_forks_continue_with_memory_processes_and_files_and_are_independent",
        "test_e2b_domain.py::test_host_names_are_all_that_a_client_needs",
        "test_e2b_r.py::test_variables_tables_plots_and_errors_of_r_arrive",
        "test_e2b_suites.py::test_the_tests_of_e2bs_sdks_pass",
        "test_lines_for_a_job.py::test_both_do_the_same_in_as_many_lines_as_the_page_says",
    ),
    "@e2b/code-interpreter": ("test_e2b_npm.py::test_the_npm_sdk_uses_a_sandbox_from_its_creation_to_its_end",),
    "fastmcp": ("test_mcp_clients.py::test_fastmcp_uses_the_tools",),
    "jupyter_kernel_client": ("test_jupyter_clients.py::test_jupyter_kernel_client_runs_interrupts_and_restarts",),
    "jupyter_kernel_gateway": ("test_jupyter_suites.py::test_the_tests_of_jupyters_servers_pass",),
    "jupyter_server": (
        "test_jupyter_clients.py::test_a_jupyter_server_with_gateway_url_runs_a_notebook_through_us",
        "test_jupyter_files.py::test_browser_and_cells_share_the_files_of_a_session",
        "test_jupyter_suites.py::test_the_tests_of_jupyters_servers_pass",
    ),
    "jupyterlab": ("test_jupyterlab.py::test_a_user_runs_interrupts_and_restarts_a_notebook",),
    "langchain-azure-dynamic-sessions": ("test_dynamic_sessions.py::test_a_client_works_as_it_is_installed",),
    "langchain-e2b": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "@librechat/agents": ("test_librechat.py::test_librechats_agents_keep_variables_and_files_of_a_chat",),
    "llama-index-tools-azure-code-interpreter": ("test_dynamic_sessions.py::test_a_client_works_as_it_is_installed",),
    "@mastra/e2b": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "mcp": ("test_mcp_clients.py::test_the_official_python_client_uses_all_tools",),
    "@modelcontextprotocol/client": ("test_mcp_clients.py::test_the_typescript_sdks_use_the_tools",),
    "@modelcontextprotocol/conformance": (
        "test_mcp_clients.py::test_the_conformance_suite_passes_but_for_what_is_not_served",
    ),
    "@modelcontextprotocol/inspector": ("test_mcp_clients.py::test_the_inspector_calls_a_tool",),
    "@modelcontextprotocol/sdk": ("test_mcp_clients.py::test_the_typescript_sdks_use_the_tools",),
    "nbclient": ("test_nbclient.py::test_a_notebook_keeps_what_its_cells_show",),
    "openai-agents": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "open-webui": (
        "test_open_webui.py::test_open_webuis_own_client_runs_code",
        "test_open_webui.py::test_a_run_answers_with_output_result_and_image",
    ),
    "Open WebUI's terminals, by their requests": (
        "../kernel_gateway/dialects/test_open_terminal.py::test_each_user_has_a_sandbox_and_a_forged_header_reaches_no_other",
    ),
    "papermill": ("test_nbclient.py::test_nbclient_and_papermill_run_notebooks_as_shown",),
    "semantic-kernel": ("test_dynamic_sessions.py::test_semantic_kernel_works_as_it_is_installed",),
    "smolagents": (
        "test_e2b_riders.py::test_a_framework_works_as_it_is_installed",
        "test_smolagents.py::test_an_agent_works_to_its_answer",
    ),
    "WeKnora, by its requests": ("test_weknora.py::test_a_script_runs_and_leaves_its_files",),
}


def passed_days() -> dict[str, str]:
    """Return the day on which the tests of each client have last passed, for those of which it is known."""
    days: dict[str, str] = json.loads(PASSED.read_text())
    return days


def passed_in(reports: Iterable[Path]) -> set[str]:
    """Return the clients all of whose tests were run and have passed, with each of their cases.

    A report has one entry for each run of a test, so a test that was run again has several; its last run counts.
    """
    ended: dict[tuple[str, str], dict[str, bool]] = {}
    for report in reports:
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest has written it
            file, name = case.get("classname", "").rpartition(".")[2], case.get("name", "")
            ended.setdefault((file, name.partition("[")[0]), {})[name] = len(case) == 0
    runs = {client: [ended.get(_key(test)) for test in tests] for client, tests in TESTED.items()}
    return {client for client, cases in runs.items() if all(each and all(each.values()) for each in cases)}


def _key(test: str) -> tuple[str, str]:
    file, _, name = test.partition("::")
    return Path(file).stem, name


def _node(test: str) -> str:
    """Return a test as pytest is asked for it."""
    file, _, name = test.partition("::")
    return f"{(FOLDER / file).resolve().relative_to(ROOT)}::{name}"


def note(clients: Iterable[str], day: dt.date) -> None:
    """Note that the tests of some clients have passed."""
    days = passed_days() | dict.fromkeys(clients, str(day))
    PASSED.write_text(json.dumps({name: days[name] for name in sorted(days) if name in TESTED}, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Run the tests unless there are reports, and note the day for the clients whose tests have passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="reports", nargs="+", type=Path, metavar="REPORT", default=[])
    given, further = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        reports = given.reports
        if not reports:
            reports = [Path(directory, "report.xml")]
            tests = dict.fromkeys(_node(test) for tests in TESTED.values() for test in tests)
            named = further if any("::" in each for each in further) else [*tests, *further]
            marks = ["-m", "engine or not engine"]
            command = [sys.executable, "-m", "pytest", f"--junitxml={reports[0]}", *marks, *named]
            subprocess.run(command, cwd=ROOT, check=False)
        found = passed_in(report for report in reports if report.exists())
    note(found, dt.datetime.now(dt.UTC).date())
    print("passed:", ", ".join(sorted(found)) or "none")
    return int(not found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
