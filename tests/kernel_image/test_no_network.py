"""A name that cannot be looked up is explained by the policy, in each way in which Python looks names up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernel_image.no_network import POLICY
from sessions.backends.base import KERNEL_IMAGE

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


def test_addresses_and_names_of_the_sandbox_are_still_found() -> None:
    found = "import socket; assert socket.getaddrinfo('127.0.0.1', 80) and socket.gethostbyname('localhost')"
    assert error_of(LOAD + found) == ""
