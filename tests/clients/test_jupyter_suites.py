"""The tests of Jupyter's own servers, as their authors published them, against this gateway.

They run in an environment of their own (`make sdks`), which has their source packages, too. `NOT_OURS` names each test
that cannot pass, with the reason. The list can only become shorter: a test of it that passes fails the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateways import KEYS, Gateway

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-jupyter/bin/python"
SOURCES = ROOT / ".venv-jupyter/sources"
OURS = Path(__file__).parent / "jupyter"

INSIDE = "it changes objects inside the server's process"
OWN_DISK = "the server looks for the path on its own disk; the gateway's has nothing of its tenants"
OWN_SPECS = "it installs kernelspecs of its own beside the server; the gateway's are those of its image"
OWN_USERS = "it replaces the identity provider inside the server's process"

#: tests of jupyter_server that cannot pass, with the reason
SERVER = {
    "services/kernels/test_api.py::test_resolve_path_kernel": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server_traversal": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server_expands_user": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server_expands_user_normalizes_path": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server_expands_user_rejects_outside_root": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_server_and_kernel": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_missing": OWN_DISK,
    "services/kernels/test_api.py::test_resolve_path_missing_kernel_reports_unresolved": OWN_DISK,
    "services/sessions/test_api.py::test_create_bad": INSIDE,
    "services/sessions/test_api.py::test_create_session_duplicate_kernel_id_returns_409": INSIDE,
    "services/kernelspecs/test_api.py::test_list_kernelspecs_bad": OWN_SPECS,
    "services/kernelspecs/test_api.py::test_list_kernelspecs": OWN_SPECS,
    "services/kernelspecs/test_api.py::test_get_kernelspecs": OWN_SPECS,
    "services/kernelspecs/test_api.py::test_get_kernel_resource_file": OWN_SPECS,
    "services/api/test_api.py::test_identity": OWN_USERS,
    "services/api/test_api.py::test_identity_permissions": OWN_USERS,
    "services/api/test_api.py::test_password_identity_permissions": OWN_USERS,
    "services/api/test_api.py::test_update_user_not_implemented_update": OWN_USERS,
    "services/api/test_api.py::test_update_user_not_implemented_persist": OWN_USERS,
    "services/api/test_api.py::test_update_user_success": OWN_USERS,
    "services/api/test_api.py::test_update_user_raise": OWN_USERS,
    "services/api/test_api.py::test_update_user_success_custom_updatable_fields": OWN_USERS,
}

#: tests of jupyter_server's contents API that cannot pass, with the reason
CONTENTS = {
    "services/contents/test_api.py::test_regression_is_hidden": INSIDE,
    "services/contents/test_api.py::test_trust": "the gateway keeps no signatures of notebooks",
    "services/contents/test_api.py::test_copy_dir": "only files are copied",
    "services/contents/test_api.py::test_get_nb_invalid": "holding a hostile notebook against the schema takes seconds",
}
SETTING = "it sets an option of its own server"
SEED = "kernels that begin with a notebook's cells are an option of its own server"
#: tests of jupyter_kernel_gateway that cannot pass, with the reason
KERNEL_GATEWAY = {
    f"test_jupyter_websocket.py::{name}": reason
    for name, reason in {
        "TestDefaults::test_headless": "`/` and `/api/contents` exist here",
        "TestDefaults::test_check_origin": "other origins may send requests, but no page can read the answers",
        "TestDefaults::test_config_bad_api_value": SETTING,
        "TestDefaults::test_options_without_auth_token": "only the preflight of an allowed page is answered",
        "TestDefaults::test_auth_token": SETTING,
        "TestDefaults::test_cors_headers": SETTING,
        "TestDefaults::test_cors_options_headers": SETTING,
        "TestDefaults::test_max_kernels": SETTING,
        "TestDefaults::test_no_discovery": "a tenant may always list its own kernels",
        "TestDefaults::test_json_errors": "it expects that kernels cannot be listed",
        "TestDefaults::test_kernel_env": "all variables of a request reach the kernel, not only those of a list",
        "TestCustomDefaultKernel::test_default_kernel_name": SETTING,
        "TestForceKernel::test_force_kernel_name": SETTING,
        "TestPrespawnKernels::test_prespawn_count": SETTING,
        "TestBaseURL::test_base_url": SETTING,
        "TestRelativeBaseURL::test_base_url": SETTING,
        "TestSeedURI::test_seed": SEED,
        "TestRemoteSeedURI::test_seed": SEED,
        "TestBadSeedURI::test_seed_error": SEED,
        "TestKernelLanguageSupport::test_seed_language_support": SEED,
    }.items()
}


@dataclass(frozen=True)
class Suite:
    """Tests of a package."""

    package: str
    #: where files of `jupyter/` go, relative to the package's source
    conftests: dict[str, str]
    files: tuple[str, ...]
    #: tests that must fail, with the reasons
    not_ours: dict[str, str]
    #: seconds of one test
    timeout: int = 100


SERVICES = {"served.py": "tests/services/conftest.py"}
SUITES = {
    "jupyter_server": Suite(
        "jupyter_server",
        SERVICES,
        tuple(f"tests/services/{service}/test_api.py" for service in ("api", "kernels", "kernelspecs", "sessions")),
        SERVER,
    ),
    "jupyter_kernel_gateway": Suite(
        "jupyter_kernel_gateway",
        {"served.py": "tests/conftest.py"},
        ("tests/test_jupyter_websocket.py",),
        KERNEL_GATEWAY,
        timeout=20,  # tests that wait for an option without effect wait for good
    ),
    "contents": Suite(
        "jupyter_server",
        SERVICES | {"contents.py": "tests/services/contents/conftest.py"},
        ("tests/services/contents/test_api.py",),
        CONTENTS,
    ),
}


PLUGIN = "pytest_jupyter.jupyter_server"
#: without the packages' own settings
FLAGS = ("-q", "-ra", "--tb=short", "--timeout-method=signal", "-oaddopts=", "-pno:cacheprovider", f"-p{PLUGIN}")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["jupyter_server", "jupyter_kernel_gateway"])
def test_the_tests_of_jupyters_servers_pass(gateway: Gateway, name: str, tmp_path: Path) -> None:
    run(gateway, SUITES[name], tmp_path)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gateway", ["process"], indirect=True)  # the tests look for the files on this machine's disk
def test_jupyter_servers_tests_of_its_contents_pass(gateway: Gateway, tmp_path: Path) -> None:
    run(gateway, SUITES["contents"], tmp_path)


def run(gateway: Gateway, suite: Suite, tmp_path: Path) -> None:
    """Run a suite in a copy of its package's source."""
    (archive,) = SOURCES.glob(f"{suite.package}-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    (root,) = tmp_path.glob(f"{suite.package}-*")
    for ours, place in suite.conftests.items():
        shutil.copy(OURS / ours, root / place)
    listed = tmp_path / "not_ours.json"
    listed.write_text(json.dumps(suite.not_ours))
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", *FLAGS, f"--timeout={suite.timeout}", *suite.files],
        cwd=root,
        env={"PATH": os.defpath, "GATEWAY": gateway.url, "KEY": KEYS["alice"], "NOT_OURS": str(listed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
