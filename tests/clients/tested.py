"""Which clients are tested, and by which tests; `tests/readme.py` makes a table of it."""

from __future__ import annotations

#: client → tests in this folder that drive it. The first one's marks say where it runs. A client is a package of
#: pyproject.toml or of a package.json in this folder; of one that no registry has, the calls are replayed.
TESTED: dict[str, tuple[str, ...]] = {
    "ag2": ("test_autogen.py::test_an_agent_runs_its_blocks",),
    "agentrun-sdk": ("test_agentrun.py::test_a_sandbox_lives_its_whole_life",),
    "agno": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
    "autogen-ext": (
        "test_dynamic_sessions.py::test_autogens_client_of_dynamic_sessions_runs_code_with_files",
        "test_autogen.py::test_the_executor_works_as_a_tool_of_agents",
    ),
    "crewai-tools": ("test_e2b_riders.py::test_a_framework_works_as_it_is_installed",),
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
    "Open WebUI's Jupyter engine, by its requests": (
        "test_open_webui.py::test_a_run_answers_with_output_result_and_image",
    ),
    "papermill": ("test_nbclient.py::test_nbclient_and_papermill_run_notebooks_as_shown",),
    "semantic-kernel": ("test_dynamic_sessions.py::test_semantic_kernel_works_as_it_is_installed",),
    "smolagents": (
        "test_e2b_riders.py::test_a_framework_works_as_it_is_installed",
        "test_smolagents.py::test_an_agent_works_to_its_answer",
    ),
    "WeKnora, by its requests": ("test_weknora.py::test_a_script_runs_and_leaves_its_files",),
}
