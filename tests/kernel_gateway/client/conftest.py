"""The gateway and the session of the client library's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kernel_gateway.client import Session
from tests.gateways import KEYS, Gateway


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the isolation makes no difference."""
    return started("process")


@pytest.fixture
def s(gateway: Gateway, session: str) -> Iterator[Session]:
    """A session that no other test uses, unless a file has another `session`."""
    with Session(gateway.url, KEYS["alice"], session) as client:
        yield client
