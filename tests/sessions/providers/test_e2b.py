"""E2B, with the real SDK, against a server of our own that speaks its protocol."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from sessions.errors import InvalidRequest, NotInitialized, QuotaExceeded, SandboxNotFound, SessionError
from sessions.providers.e2b import E2B
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import Case, instance, run, value
from tests.sessions.providers.e2b_server import KEY, Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
def case(server: Server) -> Case:
    async def left() -> int:
        return len(server.boxes)

    return Case(
        E2B,
        {"api_key": KEY, "api_url": server.url, "sandbox_url": server.url},
        left=left,
        invalid={
            "api_key: it is required": {"api_key": None},
            "region: it must be one of us, eu": {"region": "moon"},
            "timeout: it must be at least 5": {"timeout": 4},
            "api_url must be a URL": {"api_url": "e2b.example"},
            "api_key must be plain": {"api_key": "e2b_ü0123456789"},
        },
        nobody={"api_url": "http://127.0.0.1:1"},
    )


async def test_a_sandbox_is_made_as_it_was_configured(server: Server, case: Case) -> None:
    provider = E2B()
    await provider.initialize(case.config | {"region": "eu", "template": "mine", "timeout": 60})
    async with instance(provider):
        (box,) = server.boxes.values()
        assert box.made_with["templateID"] == "mine"
        assert box.made_with["metadata"] == {"region": "eu"}
        assert box.made_with["timeout"] == 360
    await provider.close()


async def test_a_wrong_key_makes_nothing(server: Server, case: Case) -> None:
    provider = E2B()
    assert not await provider.initialize(case.config | {"api_key": "e2b_another_key_0123456789"})
    with pytest.raises(NotInitialized, match="API key"):
        await provider.create_instance()
    assert server.boxes == {}
    await provider.close()


@pytest.mark.parametrize(("status", "error"), [(429, QuotaExceeded), (404, SandboxNotFound), (500, SessionError)])
async def test_error_texts_of_the_service_are_not_passed_on(
    server: Server, provider: E2B, status: int, error: type[SessionError]
) -> None:
    server.refuse = status
    with pytest.raises(error) as refused:
        await provider.create_instance()
    assert KEY not in repr(refused.value.as_dict())
    assert server.boxes == {}


async def test_a_sandbox_in_which_a_program_ran_too_long_is_gone(server: Server, provider: E2B) -> None:
    made = await provider.create_instance()
    code = "import time\ndef main(): time.sleep(60)"
    result = await provider.execute_code(made.instance_id, code, "python", 2)
    assert result.metadata["error_code"] == "SB005"
    assert server.boxes == {}
    with pytest.raises(SandboxNotFound):
        await provider.execute_code(made.instance_id, code, "python", 2)
    assert await provider.destroy_instance(made.instance_id)


async def test_a_sandbox_that_is_gone_is_no_timeout(server: Server, provider: E2B) -> None:
    made = await provider.create_instance()
    server.boxes.clear()
    with pytest.raises(SessionError):
        await provider.execute_code(made.instance_id, "def main(): pass", "python", 30)
    assert await provider.destroy_instance(made.instance_id)


async def test_a_displayed_image_is_an_artifact(provider: E2B) -> None:
    code = """
from IPython.display import Image, display
def main(): display(Image(b"\\x89PNG\\r\\n\\x1a\\n", format="png", embed=True)); return 1
"""
    result = await run(provider, code)
    assert value(result) == 1
    (image,) = result.metadata["artifacts"]
    assert (image["name"], image["mime_type"], image["size"]) == ("result-1.png", "image/png", 8)


async def test_shell_scripts_have_no_main(provider: E2B) -> None:
    result = await run(provider, "echo out; echo err >&2", "bash")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert (await run(provider, "exit 3", "bash")).exit_code == 1
    with pytest.raises(InvalidRequest, match="takes no arguments"):
        await run(provider, "true", "bash", name="you")


async def test_a_program_that_raises_keyboard_interrupt_is_a_failure(provider: E2B) -> None:
    result = await run(provider, "def main(): raise KeyboardInterrupt('no more')")
    assert (result.exit_code, result.metadata["status"]) == (1, "error")
    assert "KeyboardInterrupt: no more" in result.stderr


async def test_without_its_sdk_it_says_what_to_install(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", None)
    with pytest.raises(NotInitialized, match=r"\[e2b\]"):
        await E2B().initialize(case.config)
