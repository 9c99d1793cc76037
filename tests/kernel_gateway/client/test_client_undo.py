"""Checkpoints, branches and the page's example through the client library, on kernels in gVisor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_gateway.client import AsyncSession, GatewayError, Session
from tests import gateways
from tests.gateways import KEYS, Gateway

PAGE = Path(__file__).parents[3] / "docs/clients/python.md"
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with sandboxes, once it has proven that they can be continued."""
    with gateways.gateway("docker", golden_images="auto") as serving:
        serving.wait_for_sleep()
        yield serving


def test_the_example_works_in_a_sandbox(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pasted = example.replace("http://127.0.0.1:8888", gateway.url).replace('"KEY"', repr(KEYS["alice"]))
    monkeypatch.chdir(tmp_path)
    exec(pasted, {})  # noqa: S102 - the example is what is tested
    assert capsys.readouterr().out.endswith(" 3\n0\n1\n2\n")
    assert (tmp_path / "demo.ipynb").exists()
    with Session(gateway.url, KEYS["alice"], "demo") as s:
        assert s.run("i").error_text == "NameError: name 'i' is not defined", "the loop was undone"
        s.end()


def test_a_session_returns_to_a_checkpoint_and_a_branch_begins_there(gateway: Gateway) -> None:
    with Session(gateway.url, KEYS["alice"], "undo") as s:
        s.run("x = 1").check()
        assert s.checkpoint("one") == "one"
        s.run("x = 2").check()
        assert [each["name"] for each in s.checkpoints()] == ["one"]
        with s.branch("undo-b", checkpoint="one") as branch:
            assert (branch.name, branch.run("x").value) == ("undo-b", 1)
            branch.end()
        assert s.run("x").value == 2
        s.rollback("one")
        result = s.run("x")
        assert (result.value, result.state) == (1, "rolled_back")
        with pytest.raises(GatewayError, match="SB040"):
            s.rollback("none")
        s.end()


async def test_the_same_holds_in_an_event_loop(gateway: Gateway) -> None:
    async with AsyncSession(gateway.url, KEYS["alice"], "loop") as s:
        await s.run("x = 1")
        async with await s.branch("loop-b") as branch:
            assert (await branch.run("x")).value == 1
            await branch.end()
        await s.end()
