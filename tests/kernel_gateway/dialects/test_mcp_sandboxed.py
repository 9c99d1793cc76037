"""MCP on sandboxed kernels: what process kernels cannot show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.calls import size_of_png
from tests.kernel_gateway.mcp import call, texts


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway whose kernels can be continued from checkpoints."""
    with gateways.gateway("docker", golden_images="auto", preload="") as serving:
        serving.wait_for_sleep()
        yield serving


@pytest.mark.engine
@pytest.mark.gate
def test_an_agent_undoes_its_last_cell_by_the_automatic_checkpoint(gateway: Gateway) -> None:
    first = call(gateway, "run_code", code="x = 1\nprint(open('file', 'w').write('one'))")
    session = first["structuredContent"]["session"]
    call(gateway, "run_code", session=session, code="x = 2\nimport os; os.remove('file')")

    listed = call(gateway, "checkpoint", session=session, action="list")["structuredContent"]["checkpoints"]
    assert [each["automatic"] for each in listed] == [True], listed
    back = call(gateway, "checkpoint", session=session, action="rollback")
    assert back["structuredContent"] == {"session": session, "state": "rolled_back"}
    seen = call(gateway, "run_code", session=session, code="x, open('file').read()")
    assert (seen["structuredContent"]["state"], seen["structuredContent"]["result"]) == ("rolled_back", "(1, 'one')")
    assert "state rolled_back" in texts(seen)[0]

    branch = call(gateway, "checkpoint", session=session, action="branch")["structuredContent"]["session"]
    assert call(gateway, "run_code", session=branch, code="x")["structuredContent"]["result"] == "1"
    assert branch != session
    for each in (session, branch):
        call(gateway, "session", session=each, action="end")


@pytest.mark.engine
def test_a_picture_of_a_sandboxed_kernel_is_an_image(gateway: Gateway) -> None:
    result = call(gateway, "run_code", code="import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert [block["type"] for block in result["content"]] == ["text", "image"], texts(result)
    assert min(size_of_png(result["content"][-1]["data"])) > 100
    call(gateway, "session", session=result["structuredContent"]["session"], action="end")
