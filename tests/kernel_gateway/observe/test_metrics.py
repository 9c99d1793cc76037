"""The metrics that a real gateway gives to Prometheus."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.observe.metrics import Metrics
from sessions.model.checkpoint import CheckpointMode
from sessions.model.errors import AuditUnavailable, BackendUnavailable, CheckpointRefused, NotInitialized, SessionError
from sessions.model.stopwatch import Operation, Stage
from sessions.model.values import ExecuteRequest, SessionKey, SessionSpec, Status
from sessions.session.states import State
from tests import fakes, gateways
from tests.fakes import FakeBackend, run
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import WAITS, metric, scraped, until, write


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the isolation makes no difference."""
    return started("process")


@pytest.fixture
def session(gateway: Gateway) -> str:
    """A session name that is easy to find in the metrics."""
    return "a-name-that-is-nobodys-business"


def test_no_tenant_and_no_session_is_named(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "secret_variable = 1")
    gateway.call("GET", f"/v1/sessions/{session}-absent")
    told = scraped(gateway)
    for word in (*KEYS, *KEYS.values(), session, "secret_variable"):
        assert word not in told


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("1", "ok", None),
        ("1/0", "error", None),
        ("while True: pass", "timeout", "SB005"),
        ("exit_now", "died", "SB010"),
    ],
)
def test_cells_are_counted_by_how_they_end(
    gateway: Gateway, session: str, code: str, status: str, error: str | None
) -> None:
    before = metric(gateway, "kernel_gateway_executions_total", status=status)
    errors = metric(gateway, "kernel_gateway_errors_total", code=error or "")
    ran = metric(gateway, "kernel_gateway_execution_seconds_count")
    gateway.execute(session, code.replace("exit_now", "import os; os._exit(1)"), timeout=0.5)
    # a cell is counted after its answer
    until(lambda: metric(gateway, "kernel_gateway_executions_total", status=status) == before + 1)
    assert metric(gateway, "kernel_gateway_errors_total", code=error or "") == errors + (error is not None)
    assert metric(gateway, "kernel_gateway_execution_seconds_count") == ran + 1


@pytest.mark.parametrize(("path", "code"), [("/v1/sessions/absent", "SB011"), ("/nowhere", "SB022")])
def test_refusals_are_counted_by_code(gateway: Gateway, path: str, code: str) -> None:
    before = metric(gateway, "kernel_gateway_errors_total", code=code)
    gateway.call("GET", path)
    assert metric(gateway, "kernel_gateway_errors_total", code=code) == before + 1


def test_the_current_sessions_and_warm_kernels_are_shown(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "")
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")
    idle = metric(gateway, "kernel_gateway_sessions", state="idle")
    assert idle >= 1
    gateway.call("DELETE", f"/v1/sessions/{session}")
    assert metric(gateway, "kernel_gateway_sessions", state="idle") == idle - 1
    until(lambda: metric(gateway, "kernel_gateway_warm_kernels") >= 1)
    assert metric(gateway, "kernel_gateway_ready") == 1


def test_the_pool_reports_leases_and_refills(gateway: Gateway, session: str) -> None:
    def leases(result: str) -> float:
        return metric(gateway, "kernel_gateway_pool_leases_total", language="python", result=result)

    until(lambda: metric(gateway, "kernel_gateway_pool_kernels", language="python") >= 1)
    assert metric(gateway, "kernel_gateway_pool_target", language="python") >= 1
    hits, misses = leases("hit"), leases("miss")
    before = {name: metric(gateway, f"kernel_gateway_{name}_seconds_count") for name in ("pool_refill", "kernel_ready")}
    gateway.execute(session, "1")
    assert (leases("hit"), leases("miss")) == (hits + 1, misses)
    for name, count in before.items():  # another warm kernel takes its place
        until(lambda name=name, count=count: metric(gateway, f"kernel_gateway_{name}_seconds_count") > count)  # type: ignore[misc]
    gateway.call("POST", "/v1/sessions", json={"name": f"{session}-2", "limits": {"processes": 63}})
    assert (leases("hit"), leases("miss")) == (hits + 1, misses)  # no warm kernel fits these limits
    assert metric(gateway, "kernel_gateway_container_start_seconds_count") > 0
    assert metric(gateway, "kernel_gateway_starts_waiting") == 0
    for name in (session, f"{session}-2"):
        gateway.call("DELETE", f"/v1/sessions/{name}")


def test_session_names_add_no_time_series(gateway: Gateway) -> None:
    def series() -> int:
        return sum(len(family.samples) for family in text_string_to_metric_families(scraped(gateway)))

    gateway.call("GET", "/v1/sessions/absent")
    before = series()
    for number in range(50):
        gateway.call("GET", f"/v1/sessions/absent-{number}")
    assert series() == before


# -- requests, executions under way, the gateway itself --------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/v1/sessions", {"dialect": "native", "method": "GET", "status": "2xx"}),
        ("GET", "/v1/sessions/absent", {"dialect": "native", "method": "GET", "status": "4xx"}),
        ("GET", "/api/kernels", {"dialect": "jupyter", "method": "GET", "status": "2xx"}),
        ("GET", "/sandboxes/absent/health", {"dialect": "agentrun", "method": "GET", "status": "4xx"}),
        ("GET", "/healthz", {"dialect": "ops", "method": "GET", "status": "2xx"}),
        ("POST", "/nowhere", {"dialect": "none", "method": "POST", "status": "4xx"}),
        ("BREW", "/v1/sessions", {"dialect": "native", "method": "other", "status": "4xx"}),
    ],
)
def test_requests_are_counted_by_dialect_method_and_status(
    gateway: Gateway, method: str, path: str, labels: dict[str, str]
) -> None:
    before = metric(gateway, "kernel_gateway_http_requests_total", **labels)
    lasted = metric(gateway, "kernel_gateway_http_request_seconds_count", dialect=labels["dialect"])
    gateway.call(method, path)
    assert metric(gateway, "kernel_gateway_http_requests_total", **labels) > before
    assert metric(gateway, "kernel_gateway_http_request_seconds_count", dialect=labels["dialect"]) > lasted


def test_the_running_and_waiting_cells_are_shown(gateway: Gateway, session: str) -> None:
    def under_way() -> tuple[float, float]:
        return metric(gateway, "kernel_gateway_executions_running"), metric(
            gateway, "kernel_gateway_executions_waiting"
        )

    until(lambda: under_way() == (0, 0))
    path, body = f"/v1/sessions/{session}/execute", {"code": WAITS, "timeout": 60}
    with ThreadPoolExecutor(3) as clients:
        cells = [clients.submit(gateway.call, "POST", path, json=body) for _ in range(3)]
        until(lambda: under_way() == (1, 2))
        write(gateway, session, "go")
        assert [cell.result().status_code for cell in cells] == [200] * 3
    until(lambda: under_way() == (0, 0))
    gateway.call("DELETE", f"/v1/sessions/{session}")


def test_the_process_and_its_loop_are_measured(gateway: Gateway) -> None:
    assert metric(gateway, "process_resident_memory_bytes") > 1e6
    assert 0 < metric(gateway, "process_open_fds") < metric(gateway, "process_max_fds")
    before = metric(gateway, "kernel_gateway_loop_lag_seconds_count")
    until(lambda: metric(gateway, "kernel_gateway_loop_lag_seconds_count") > before)
    assert metric(gateway, "kernel_gateway_trouble", code="SB001") == 0


def test_trouble_is_reported_by_its_code() -> None:
    metrics = Metrics()
    for trouble in (NotInitialized(), BackendUnavailable(), None):
        metrics.set_trouble(trouble)
        families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples["kernel_gateway_ready"].value == (trouble is None)
        told = samples.get("kernel_gateway_trouble")
        assert (told.labels if told else {}) == ({"code": trouble.code} if trouble else {})


async def test_a_cell_that_cannot_be_audited_is_counted(tmp_path: Path) -> None:
    service = Service(Settings.model_validate({"isolation": "process", "state_dir": tmp_path}))
    key, request = SessionKey("acme", "s"), ExecuteRequest("1")
    counted = "kernel_gateway_audit_failures_total"
    service.journal.ended(key, service.journal.begins(key, "python", request), request, None)
    assert service.metrics.registry.get_sample_value(counted) == 0
    service.audit.close()
    with capture_logs(), pytest.raises(AuditUnavailable):
        service.journal.begins(key, "python", request)
    assert service.metrics.registry.get_sample_value(counted) == 1
    await service.stop()


async def test_checkpoints_returns_and_wakes_are_counted(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    service = await Service(Settings.model_validate({"state_dir": tmp_path, "port": 0, "pool_size": 0})).start()

    def told(name: str, **labels: str) -> float | None:
        return service.metrics.registry.get_sample_value(f"kernel_gateway_{name}", labels)

    spec = SessionSpec(checkpoints=CheckpointMode.AUTO)
    session = await service.registry.create(SessionKey("acme", "s"), spec)
    await run(session, "x = 1")
    await run(session, "import os; os._exit(3)")
    # before the first cell, and after both
    await fakes.until(lambda: told("checkpoint_seconds_count", result="taken") == 3 and not session.in_use)
    await session.checkpoints.roll_back(None)
    backend.sleep.refuses = "it has a connection"
    with pytest.raises(CheckpointRefused):
        await session.checkpoints.take(None)
    backend.sleep.refuses = ""
    assert await session.fall_asleep() == ""
    await session.start()

    assert told("checkpoint_seconds_count", result="failed") == 1
    assert [told("rollbacks_total", reason=reason) for reason in ("client", "crash")] == [1, 1]
    assert [told("wake_seconds_count", result=result) for result in ("woken", "failed")] == [1, None]
    kept = sum(checkpoint.image.size for checkpoint in session.checkpoints.all)
    assert told("sleep_disk_bytes") == kept > 0
    counted = {each: told("stage_seconds_count", operation=each, stage="answer") for each in ("rollback", "wake")}
    assert counted == {"rollback": 2, "wake": 1}
    await service.stop()


# -- room ------------------------------------------------------------------------------------------------------


def test_the_disk_of_the_state_directory_is_measured(gateway: Gateway) -> None:
    disk = os.statvfs(gateway.state_dir)
    assert metric(gateway, "kernel_gateway_state_disk_bytes") == disk.f_frsize * disk.f_blocks
    assert 0 < metric(gateway, "kernel_gateway_state_disk_free_bytes") <= disk.f_frsize * disk.f_bfree + 1024**3


def test_a_disk_that_does_not_answer_counts_as_full(tmp_path: Path) -> None:
    metrics = Metrics()
    for directory, answers in ((tmp_path, True), (tmp_path / "absent", False)):
        metrics.room.watch_disk(directory)
        for name in ("state_disk_bytes", "state_disk_free_bytes"):
            assert bool(metrics.registry.get_sample_value(f"kernel_gateway_{name}")) is answers


@pytest.mark.parametrize(("given", "shown"), [(5 * 1024**3, 5 * 1024**3), (0, math.inf)])
async def test_the_limits_of_memory_and_sleep_are_shown(tmp_path: Path, given: int, shown: float) -> None:
    values = {"isolation": "process", "state_dir": tmp_path, "max_total_memory": given, "sleep_disk": given}
    service = Service(Settings.model_validate(values))
    value = service.metrics.registry.get_sample_value
    assert value("kernel_gateway_promised_memory_limit_bytes") == shown
    assert value("kernel_gateway_sleep_disk_limit_bytes") == given
    assert value("kernel_gateway_certificate_seconds") == math.inf
    await service.stop()


# -- labels ----------------------------------------------------------------------------------------------------


def codes(error: type[SessionError] = SessionError) -> set[str]:
    """Return the codes of all errors."""
    return {error.code}.union(*map(codes, error.__subclasses__()))


CLOSED: dict[str, set[str]] = {
    "operation": {operation.value for operation in Operation},
    "stage": {stage.value for stage in Stage},
    "code": codes(),
    "dialect": {dialect.name for dialect in DIALECTS} | {"none"},
    "language": {"python", "javascript", "bash", "r"},
    "method": {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"},
    "reason": {"address", "bytes", "client", "crash", "session", "slow", "tenant", "total"},
    "result": {"asleep", "failed", "hit", "miss", "restored", "taken", "woken"},
    "state": set(State),
    "status": set(Status) | {f"{hundred}xx" for hundred in range(1, 6)},
}

HOSTILE = ["a.b-c_d", "x" * 64, "le", "kernel_gateway_ready", "__name__", "0", "..-..", "NaN"]
UNNAMED = ['{x="1"}', "%0akernel_gateway_ready%200", "a%22b", "..%2f..%2fetc", "%00", "é", "x" * 2000]
TENANT = "tenant.of_4711"


def test_all_labels_have_closed_sets_of_values_whatever_clients_send() -> None:
    key = "key-of-the-tenant-0001"
    with gateways.gateway("process", keys=f"{TENANT}:{key}") as gateway:

        def call(method: str, path: str, **options: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"} | options.pop("headers", {})
            return gateway.call(method, path, tenant=None, headers=headers, **options).status_code

        for name in HOSTILE[:2]:
            body = {"code": "1/0", "idempotency_key": name}
            assert call("POST", f"/v1/sessions/{name}/execute", headers={"X-Request-Id": name}, json=body) == 200
        assert call("POST", f"/v1/sessions/{HOSTILE[0]}/execute", json={"code": "while 1: pass", "timeout": 0.2}) == 200
        assert call("POST", f"/v1/sessions/{HOSTILE[0]}/execute", json={"code": "import os; os._exit(1)"}) == 200
        for name in HOSTILE + UNNAMED:
            for path in (f"/v1/sessions/{name}", f"/api/kernels/{name}", f"/sandboxes/{name}", f"/{name}"):
                for method in ("GET", "BREW", "kernel_gateway_ready"):
                    call(method, path)
            call("POST", "/v1/sessions", json={"name": name, "language": name})
            call("POST", "/api/kernels", json={"name": name})
            call("GET", "/v1/sessions", headers={"Host": "localhost", "X-API-Key": name.encode()})
        families = list(text_string_to_metric_families(scraped(gateway)))
    samples = [sample for family in families for sample in family.samples]
    labels = {(name, told) for sample in samples for name, told in sample.labels.items() if name != "le"}
    assert {name for name, _ in labels} <= set(CLOSED)
    assert {(name, told) for name, told in labels if told not in CLOSED[name]} == set()
    assert {("method", "other"), ("dialect", "none"), ("status", "timeout"), ("code", "SB022")} <= labels
    assert all(float(sample.labels["le"]) > 0 for sample in samples if "le" in sample.labels)
