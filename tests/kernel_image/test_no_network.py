"""A name that cannot be looked up is explained by the policy, in each way in which Python looks names up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_image.no_network import POLICY
from sessions.backends.base import KERNEL_IMAGE
from tests.kernel_image.wheel import write_wheel

LOAD = f"import sys; sys.path.insert(0, {str(KERNEL_IMAGE)!r}); import no_network; "
LOOKUPS = {
    "getaddrinfo": "socket.getaddrinfo('no-such-name.invalid', 443)",
    "gethostbyname": "socket.gethostbyname('no-such-name.invalid')",
    "gethostbyname_ex": "socket.gethostbyname_ex('no-such-name.invalid')",
    "connect": "socket.create_connection(('no-such-name.invalid', 443))",
    "asyncio": "asyncio.run(asyncio.open_connection('no-such-name.invalid', 443))",
}


def error_of(code: str) -> str:
    """Run code in a separate interpreter, and return the last line of its error."""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_a_failed_lookup_names_the_policy(lookup: str) -> None:
    look_up = f"import asyncio, socket; {lookup}"
    assert POLICY not in error_of(look_up)
    error = error_of(LOAD + look_up)
    assert error.startswith("socket.gaierror: [Errno ")
    assert error.endswith(POLICY)


PIP = LOAD + "from pip._internal.cli.main import main; sys.argv[1:] = {}; sys.exit(main())"
NOWHERE = "--index-url=https://no-such-name.invalid/simple"


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    """Run pip in a sandbox without network, with its usual number of retries, which would take seconds."""
    command = [sys.executable, "-c", PIP.format(["--isolated", "--disable-pip-version-check", *words])]
    return subprocess.run(command, check=False, capture_output=True, text=True, env={})


def test_pip_ends_at_once_with_the_policy_as_its_error() -> None:
    done = pip("install", NOWHERE, "nothing")
    assert (done.returncode, done.stderr) == (1, f"ERROR: {POLICY}\n")


def test_pip_still_finds_packages_in_a_directory(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    to = f"--dest={tmp_path / 'found'}"
    done = pip("download", "--retries=0", NOWHERE, to, f"--find-links={tmp_path}", "greeting")
    assert (done.returncode, (tmp_path / "found" / wheel.name).exists()) == (0, True), done.stderr


def test_addresses_and_names_of_the_sandbox_are_still_found() -> None:
    found = "import socket; assert socket.getaddrinfo('127.0.0.1', 80) and socket.gethostbyname('localhost')"
    assert error_of(LOAD + found) == ""
