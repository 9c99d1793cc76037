"""MCP on sandboxed kernels: what process kernels cannot show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gateways import Gateway
from tests.kernel_gateway.calls import size_of_png
from tests.kernel_gateway.mcp import call, texts


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway whose kernels are sandboxed."""
    return started("docker")


@pytest.mark.engine
def test_a_picture_of_a_sandboxed_kernel_is_an_image(gateway: Gateway) -> None:
    result = call(gateway, "run_code", code="import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert [block["type"] for block in result["content"]] == ["text", "image"], texts(result)
    assert min(size_of_png(result["content"][-1]["data"])) > 100
    call(gateway, "session", session=result["structuredContent"]["session"], action="end")
