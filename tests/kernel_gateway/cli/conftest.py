"""The gateway of the commands that are clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gateways import KEYS, Gateway


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the isolation makes no difference."""
    return started("process")


@pytest.fixture
def at_gateway(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """The gateway, whose address and key are in the environment."""
    monkeypatch.setenv("KERNEL_GATEWAY_URL", gateway.url)
    monkeypatch.setenv("KERNEL_GATEWAY_KEY", KEYS["alice"])
    return gateway
