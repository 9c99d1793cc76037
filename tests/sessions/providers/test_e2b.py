"""E2B, with the real SDK, against this gateway's own E2B dialect."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from e2b_code_interpreter import Execution, ExecutionError, Logs
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from sessions.model.errors import InvalidRequest, NotInitialized, QuotaExceeded, SandboxNotFound, SessionError
from sessions.providers.e2b import E2B
from sessions.providers.e2b_sdk import outcome
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.e2b import control
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import Case, instance, run, value


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", pool_size="1") as serving:
        yield serving


def boxes(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the sandboxes that exist."""
    listed: list[dict[str, Any]] = control(gateway, "GET", "/v2/sandboxes").json()
    return listed


@pytest.fixture
def case(gateway: Gateway) -> Case:
    async def left() -> int:
        return len(boxes(gateway))

    return Case(
        E2B,
        {"api_key": KEYS["alice"], "api_url": gateway.url, "sandbox_url": gateway.url},
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


async def test_a_sandbox_is_made_as_it_was_configured(gateway: Gateway, case: Case) -> None:
    provider = E2B()
    await provider.initialize(case.config | {"region": "eu", "template": "base", "timeout": 60})
    async with instance(provider):
        (box,) = boxes(gateway)
        assert (box["templateID"], box["metadata"]) == ("base", {"region": "eu"})
        ends, began = (datetime.fromisoformat(box[name]) for name in ("endAt", "startedAt"))
        assert (ends - began).total_seconds() >= 360
    await provider.close()


async def test_a_wrong_key_makes_nothing(gateway: Gateway, case: Case) -> None:
    provider = E2B()
    assert not await provider.initialize(case.config | {"api_key": "e2b_another_key_0123456789"})
    with pytest.raises(NotInitialized, match="API key"):
        await provider.create_instance()
    assert boxes(gateway) == []
    await provider.close()


async def test_an_unknown_template_is_said_to_be_unknown(gateway: Gateway, case: Case) -> None:
    provider = E2B()
    await provider.initialize(case.config | {"template": "absent"})
    with pytest.raises(SandboxNotFound, match="template"):
        await provider.create_instance()
    assert boxes(gateway) == []
    await provider.close()


class Refusing(RequestHandler):
    """Answers everything with one status and a text that contains the key."""

    def initialize(self, status: int) -> None:
        self.status = status

    def prepare(self) -> None:
        self.set_status(self.status)
        self.finish({"code": self.status, "message": f"refused with {KEYS['alice']}"})


@asynccontextmanager
async def refusing(status: int) -> AsyncIterator[str]:
    """Serve on a new port on loopback, and yield the URL."""
    listening = HTTPServer(Application([(".*", Refusing, {"status": status})]))
    (socket,) = bind_sockets(0, "127.0.0.1")
    listening.add_sockets([socket])
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        listening.stop()
        await listening.close_all_connections()


@pytest.mark.parametrize(("status", "error"), [(429, QuotaExceeded), (404, SandboxNotFound), (500, SessionError)])
async def test_error_texts_of_the_service_are_not_passed_on(case: Case, status: int, error: type[SessionError]) -> None:
    async with refusing(status) as url:
        provider = E2B()
        await provider.initialize(case.config | {"api_url": url})
        with pytest.raises(error) as refused:
            await provider.create_instance()
        assert KEYS["alice"] not in repr(refused.value.as_dict())
        await provider.close()


async def test_a_sandbox_in_which_a_program_ran_too_long_is_gone(gateway: Gateway, provider: E2B) -> None:
    made = await provider.create_instance()
    code = "import time\ndef main(): time.sleep(60)"
    result = await provider.execute_code(made.instance_id, code, "python", 2)
    assert result.metadata["error_code"] == "SB005"
    assert boxes(gateway) == []
    with pytest.raises(SandboxNotFound):
        await provider.execute_code(made.instance_id, code, "python", 2)
    assert await provider.destroy_instance(made.instance_id)


async def test_a_sandbox_that_is_gone_is_no_timeout(gateway: Gateway, provider: E2B) -> None:
    made = await provider.create_instance()
    (box,) = boxes(gateway)
    assert control(gateway, "DELETE", f"/sandboxes/{box['sandboxID']}").status_code == 204
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
    logs = Logs(stdout=["o", "ut\n"], stderr=["err\n"])  # what the service says of a script; this gateway runs none
    result = outcome(None, Execution(logs=logs), 1.0)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    error = ExecutionError("Exit", "3", "")
    result = outcome(None, Execution(logs=logs, error=error), 1.0)
    assert (result.stderr, result.exit_code) == ("err\nExit: 3\n", 1)
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
