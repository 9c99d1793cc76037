"""Tenants at the wire: limits hold for every dialect, at any one time and within the quota window."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import e2b, jupyter, sockets
from tests.kernel_gateway.accounts import accounts, crash, execute, outcomes, refusal
from tests.kernel_gateway.agentrun import Box, boxed
from tests.kernel_gateway.calls import HANGS, NDJSON, exists, metric, until
from tests.tiers import some

SLEEPS = "import time; time.sleep(0.5)"


# -- at a time -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Gateway]:
    """A gateway on which a tenant may run one execution and queue one more."""
    with gateways.gateway(
        "process", max_concurrent_per_tenant="1", max_queued_per_tenant="1", queue_timeout="60"
    ) as serving:
        yield serving


@pytest.fixture
def busy(narrow: Gateway) -> Iterator[Callable[[], None]]:
    """Run a cell of alice until the returned function is called."""
    session = f"busy-{secrets.token_hex(4)}"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(narrow.execute, session, HANGS)
        until(lambda: exists(narrow, session, "begun"))
        yield lambda: narrow.call("POST", f"/v1/sessions/{session}/interrupt").raise_for_status()
        narrow.call("POST", f"/v1/sessions/{session}/interrupt")
        assert running.result()["status"] == "interrupted"
    narrow.call("DELETE", f"/v1/sessions/{session}")


async def test_one_limit_holds_for_every_dialect(narrow: Gateway, busy: Callable[[], None]) -> None:
    made = narrow.call("POST", "/api/kernels", json={}).json()["id"]
    with ExitStack() as stack:
        box = stack.enter_context(boxed(narrow))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(narrow.call, "DELETE", f"/api/kernels/{made}")
        waiting = threads.submit(execute, narrow, "1")
        until(lambda: in_line(narrow) == 1)
        told = "at most 1 executions of a tenant at a time"
        refused = [
            execute(narrow, "1"),
            execute(narrow, "1", headers={"Accept": NDJSON}),
            box.call("POST", "/contexts/execute", json={"code": "1"}),
            box.call("POST", "/processes/cmd", json={"command": "true"}),
        ]
        assert {refusal(response) for response in refused} == {f"{told}, and 1 that wait"}
        async with jupyter.connected(narrow, made) as client, sockets.connected(narrow, "s") as stream:
            reply = (await client.execute("1"))[-1]
            assert (reply["content"]["ename"], reply["content"]["evalue"]) == ("QuotaExceeded", told)
            await stream.send(code="1")
            error = (await stream.until("error"))[-1]["error"]
            assert (error["code"], error["details"]["retry_after"]) == ("SB008", 1)
        assert narrow.execute("s", "1", tenant="bob")["status"] == "ok"  # another tenant is not affected
        busy()
        assert waiting.result().status_code == 200
        assert box.text("print(1)") == "1\n"


def in_line(gateway: Gateway) -> float:
    """Return the number of queued executions of all tenants."""
    return metric(gateway, "kernel_gateway_executions_waiting")


def test_a_client_that_leaves_the_queue_makes_room_in_it(narrow: Gateway, busy: Callable[[], None]) -> None:
    for _ in range(3):
        until(lambda: in_line(narrow) == 0)
        with pytest.raises(requests.ReadTimeout):
            # The execution was queued, otherwise it would have been refused by now.
            execute(narrow, "1", timeout=1, on_disconnect="interrupt")
    with ThreadPoolExecutor(1) as threads:
        until(lambda: in_line(narrow) == 0)
        waiting = threads.submit(execute, narrow, "1")
        until(lambda: in_line(narrow) == 1)
        assert execute(narrow, "1").status_code == 429
        busy()
        assert waiting.result().status_code == 200


def test_a_session_beyond_the_memory_of_all_kernels_is_refused_with_a_time_to_retry() -> None:
    with gateways.gateway("process", memory="128m", max_total_memory="200m", max_share_per_tenant="1") as gateway:
        assert gateway.call("POST", "/v1/sessions", json={"name": "a"}).status_code == 201
        refused = gateway.call("POST", "/v1/sessions", json={"name": "b"}, tenant="bob")
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["code"], error["details"]["limit"]) == ("SB008", "memory_in_all")
        assert int(refused.headers["Retry-After"]) > 0
        metrics = gateway.call("GET", "/metrics", tenant=None).text
        assert "kernel_gateway_promised_memory_bytes 1.34217728e+08" in metrics
        assert gateway.call("DELETE", "/v1/sessions/a").status_code == 204
        assert gateway.call("POST", "/v1/sessions", json={"name": "b"}, tenant="bob").status_code == 201


def test_a_queued_execution_is_refused_after_the_queue_timeout() -> None:
    with gateways.gateway("process", max_concurrent_per_tenant="1", queue_timeout="0.3") as gateway:
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(gateway.execute, "busy", HANGS)
            until(lambda: exists(gateway, "busy", "begun"))
            assert "this one has waited 0.3 s" in refusal(execute(gateway, "1"))
            gateway.call("POST", "/v1/sessions/busy/interrupt")
            running.result()
        assert execute(gateway, "1").status_code == 200


def test_a_tenants_flood_does_not_keep_others_waiting() -> None:
    flooded = gateways.gateway("process", max_concurrent="2", max_concurrent_per_tenant="2", max_queued_per_tenant="30")
    with flooded as gateway, ThreadPoolExecutor(20) as threads:
        for tenant in KEYS:
            gateway.execute("s", "pass", tenant=tenant)
        flood = [threads.submit(gateway.execute, "s", SLEEPS) for _ in range(12)]
        until(lambda: len(accounts(gateway.state_dir)) > 3)
        assert gateway.execute("s", "1", tenant="bob")["status"] == "ok"
        assert sum(future.done() for future in flood) < 8  # one queue for all tenants would serve it last
        assert {future.result()["status"] for future in flood} == {"ok"}


# -- in the course of time -------------------------------------------------------------------------------------


@contextmanager
def metered(state_dir: Path) -> Iterator[Gateway]:
    """A gateway with limits on a tenant's use."""
    with gateways.gateway(
        "process",
        state_dir=str(state_dir),
        max_total_output_bytes="1000",
        max_execution_seconds="100",
        max_upload_bytes="1000",
    ) as serving:
        yield serving


def prints(gateway: Gateway, way: str) -> None:
    """Make alice produce 2000 bytes of output."""
    code = "print('x' * 2000)"
    match way:
        case "native":
            gateway.execute("s", code)
        case "contexts" | "commands":
            with boxed(gateway) as box:
                _ = box.run(code) if way == "contexts" else box.command("head -c 2000 /dev/zero | tr '\\0' x")
        case "channels":
            asyncio.run(_over_channels(gateway, code))


async def _over_channels(gateway: Gateway, code: str) -> str:
    """Run a cell over a kernel's channels; return the name of its error, or "ok"."""
    made = gateway.call("POST", "/api/kernels", json={}).json()["id"]
    async with jupyter.connected(gateway, made) as client:
        seen = await client.execute(code)
        return next(str(message["content"].get("ename", "ok")) for message in seen if message["channel"] == "shell")


@pytest.mark.parametrize("way", some(["native", "contexts", "commands", "channels"], gate=1))
def test_a_quota_used_up_in_one_dialect_is_used_up_in_all_also_after_a_kill(way: str, tmp_path: Path) -> None:
    with metered(tmp_path) as gateway:
        prints(gateway, way)
        until(lambda: sum(outcomes(tmp_path).values()) == 1)
        assert "1000 output bytes per 3600 s are used up" in refusal(execute(gateway, "1"))
        crash(gateway)
    with metered(tmp_path) as gateway:
        refused = execute(gateway, "1")
        assert "1000 output bytes" in refusal(refused)
        assert 3400 < int(refused.headers["Retry-After"]) <= 3700
        assert asyncio.run(_over_channels(gateway, "1")) == "QuotaExceeded"
        with boxed(gateway) as box:
            for path, body in (("/contexts/execute", {"code": "1"}), ("/processes/cmd", {"command": "true"})):
                assert "1000 output bytes" in refusal(box.call("POST", path, json=body))
        assert gateway.execute("s", "1", tenant="bob")["status"] == "ok"


@pytest.mark.parametrize("way", some(["native", "json", "form", "e2b"], gate=1))
def test_uploads_count_in_every_dialect(way: str, tmp_path: Path) -> None:
    with metered(tmp_path) as gateway, boxed(gateway) as box:
        assert {_upload(gateway, box, way, name).status_code for name in "ab"} <= {200, 204}
        for other in ("native", "json", "form", "e2b"):
            assert "1000 upload bytes per 3600 s are used up" in refusal(_upload(gateway, box, other, "c"))
        assert gateway.execute("s", "1")["status"] == "ok"


def _upload(gateway: Gateway, box: Box, way: str, name: str) -> requests.Response:
    content = b"x" * 600
    match way:
        case "native":
            return gateway.call("PUT", f"/v1/sessions/s/files/{name}", data=content)
        case "json":
            return box.call("POST", "/files", json={"path": name, "content": content.decode()})
        case "e2b":
            with e2b.boxed(gateway) as own:
                return own.call("POST", "/files", e2b.ENVD, params={"path": name}, data=content)
        case _:
            return box.call("POST", "/filesystem/upload", data={"path": name}, files={"file": content})
