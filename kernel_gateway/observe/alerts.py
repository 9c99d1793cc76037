"""The alerts: the states of the service that need its operator. Cells that fail or are slow are no such states.

The table `ALERTS` is the only place of the thresholds. `monitoring/alerts.yml` is made from it for Prometheus
(`make readme`), and `AlertWatch` finds the same alerts within the gateway, for the admin page. One set of cases tests
both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from prometheus_client import Metric

from kernel_gateway.errors import InternalError
from kernel_gateway.observe.alert_conditions import WINDOW, Absence, Condition, Level, Reading, Rise, Share
from sessions.model.errors import AuditUnavailable, BackendUnavailable, LedgerUnavailable, NotInitialized, StartFailed
from sessions.model.tasks import forever
from sessions.tenants.audit_disk import FLOOR

#: seconds between two looks
INTERVAL = 30.0
DAY = 86400
#: errors that are the service's own fault
OWN_FAULTS = (AuditUnavailable, BackendUnavailable, InternalError, LedgerUnavailable, NotInitialized, StartFailed)
_OWN_CODES = "|".join(sorted(kind.code for kind in OWN_FAULTS))


@dataclass(frozen=True)
class Alert:
    """One alert."""

    name: str
    #: critical: clients notice it now. warning: they will, unless somebody acts.
    severity: Literal["critical", "warning"]
    condition: Condition
    #: minutes for which the condition must be met
    minutes: int
    summary: str
    action: str


_PRESENT = (
    Alert(
        "KernelGatewayDown",
        "critical",
        Absence(),
        1,
        "The gateway does not answer.",
        "Look at the service and at the end of its log; start it again.",
    ),
    Alert(
        "KernelGatewayNotReady",
        "critical",
        Level("kernel_gateway_ready", "==", 0),
        2,
        "No kernels can be started.",
        "Run `kernel-gateway doctor` on the host: it names what is missing and how to mend it. `/readyz` tells the "
        "same. The gateway tries again by itself; sessions that have a kernel go on.",
    ),
    Alert(
        "KernelGatewayUnavailable",
        "critical",
        Share(
            f'kernel_gateway_errors_total{{code=~"{_OWN_CODES}"}}',
            ">",
            0.01,
            of='kernel_gateway_http_requests_total{dialect!="ops"}',
        ),
        2,
        "More than 1 % of the requests fail because of the service itself.",
        "See in `kernel_gateway_errors_total` which SB code it is. SB004, SB009: look at Docker and at the host's "
        "memory and disk. SB019, SB027: look at the disk of `state_dir`. SB025: a defect; the log has its traceback "
        "under the request's id.",
    ),
)
_ROOM = (
    Alert(
        "KernelGatewayStateDisk",
        "warning",
        Level("kernel_gateway_state_disk_free_bytes", "<", 0.1, of="kernel_gateway_state_disk_bytes"),
        5,
        "Less than 10 % of the disk that holds `state_dir` is free.",
        "Make room on that disk. Lower `sleep_disk`, `golden_disk` or `audit_retention` if the gateway takes too much.",
    ),
    Alert(
        "KernelGatewayStateDiskFull",
        "critical",
        Level("kernel_gateway_state_disk_free_bytes", "<", FLOOR),
        1,
        f"Less than {FLOOR // 1024**2} MiB of the disk that holds `state_dir` are free: each tenant may run only its "
        "share of the cells that still fit into the audit, and then none.",
        "Make room on that disk at once. The gateway goes on by itself.",
    ),
    Alert(
        "KernelGatewayAuditFails",
        "critical",
        Rise("kernel_gateway_audit_failures_total"),
        0,
        "The audit cannot be written, so no code is run (SB019).",
        "Make room on the disk that holds `state_dir`, or replace it. The gateway goes on by itself.",
    ),
    Alert(
        "KernelGatewaySleepDisk",
        "warning",
        Level("kernel_gateway_sleep_disk_bytes", ">", 0.9, of="kernel_gateway_sleep_disk_limit_bytes"),
        15,
        "More than 90 % of `sleep_disk` is in use: soon no more sessions can sleep, and they keep their memory.",
        "Raise `sleep_disk` if the disk has room, or lower `sleep_for`.",
    ),
    Alert(
        "KernelGatewayMemory",
        "warning",
        Level("kernel_gateway_promised_memory_bytes", ">", 0.9, of="kernel_gateway_promised_memory_limit_bytes"),
        15,
        "More than 90 % of `max_total_memory` is promised to kernels: soon no more sessions can start.",
        "Lower `idle_timeout` or `memory`, let idle sessions sleep (`on_idle`), or give the host more memory.",
    ),
    Alert(
        "KernelGatewayDescriptors",
        "warning",
        Level("process_open_fds", ">", 0.8, of="process_max_fds"),
        5,
        "More than 80 % of the file descriptors that the gateway may have are open.",
        "Raise the service's limit (`LimitNOFILE`, `ulimits`), or lower `max_sessions_per_tenant`.",
    ),
    Alert(
        "KernelGatewayCertificateEnds",
        "warning",
        Level("kernel_gateway_certificate_seconds", "<", 14 * DAY),
        10,
        "The certificate that the gateway uses ends in less than 14 days; then clients refuse to connect.",
        "Renew the file that `tls_certificate` names; the gateway uses it within a minute. Without such a file, a "
        "restart makes a new certificate, which clients must get (`tls.pem`).",
    ),
)
_WORK = (
    Alert(
        "KernelGatewayPoolEmpty",
        "warning",
        Level("kernel_gateway_pool_kernels", "==", 0, of="kernel_gateway_pool_target"),
        5,
        "No warm kernel of some language has waited for 5 minutes: new sessions start slowly.",
        "If kernels are taken faster than they start, raise `pool_size`, or `sandbox_pool_size` for the language "
        "`sandbox`. If none starts, the log says why, and "
        "`kernel-gateway doctor` what is missing.",
    ),
    Alert(
        "KernelGatewayStartsSlow",
        "warning",
        Share(
            'kernel_gateway_container_start_seconds_bucket{le="10.0"}',
            "<",
            0.95,
            of="kernel_gateway_container_start_seconds_count",
        ),
        5,
        "One container in twenty takes longer than 10 s to start.",
        "Look at the host's load and disk and at the Docker engine's log; end what else starts containers there.",
    ),
    Alert(
        "KernelGatewayRestoresFail",
        "warning",
        Share('kernel_gateway_restores_total{result="failed"}', ">", 0.05, of="kernel_gateway_restores_total"),
        2,
        "More than 5 % of the new kernels cannot be restored from their golden image: they start plainly, and slowly.",
        "The log says why. `kernel-gateway doctor` tries golden images on this engine; `golden_images` can be `off`.",
    ),
    Alert(
        "KernelGatewayCheckpointsFail",
        "warning",
        Share(
            'kernel_gateway_checkpoint_seconds_count{result="failed"}',
            ">",
            0.5,
            of="kernel_gateway_checkpoint_seconds_count",
        ),
        2,
        "More than half of the checkpoints cannot be taken: a crash of a kernel then loses its session's variables.",
        "The log's lines `a kernel cannot be copied` say why. A cell that keeps a connection open is no fault of the "
        "service; it is the reason for which the bound is so high.",
    ),
    Alert(
        "KernelGatewayWakesFail",
        "critical",
        Share(
            'kernel_gateway_wake_seconds_count{result="failed"}',
            ">",
            0.05,
            of="kernel_gateway_wake_seconds_count",
        ),
        2,
        "More than 5 % of the sleeping sessions do not wake; those that cannot wake at all lose their variables.",
        "The log's lines `a kernel did not wake` say why. SB008 in `kernel_gateway_errors_total`: too much memory is "
        "promised (`max_total_memory`). Otherwise look at the host's load and disk and at the Docker engine's log.",
    ),
    Alert(
        "KernelGatewayLeftovers",
        "warning",
        Level("kernel_gateway_leftovers", ">", 0),
        30,
        "For 30 minutes, containers or volumes that nobody needs could not be removed. They take memory and disk.",
        "The log and the Docker engine's log say why. The gateway tries again by itself.",
    ),
    Alert(
        "KernelGatewayStrays",
        "warning",
        Rise("kernel_gateway_strays_total"),
        0,
        "A kernel belonged to no session and was ended. That is a defect of the gateway.",
        "Report it with the log's lines that name the kernel's container.",
    ),
    Alert(
        "KernelGatewayLoopLag",
        "warning",
        Share(
            'kernel_gateway_loop_lag_seconds_bucket{le="0.25"}', "<", 0.99, of="kernel_gateway_loop_lag_seconds_count"
        ),
        5,
        "The gateway itself is slow: it is late by more than 0.25 s more than one time in a hundred.",
        "The host lacks processors, or something blocks the gateway: then the log has lines `the event loop stands "
        "still` with the task and where it was.",
    ),
)
#: all alerts, by subject
ALERTS: Mapping[str, tuple[Alert, ...]] = {
    "it is there": _PRESENT,
    "it has room": _ROOM,
    "it does its work": _WORK,
}


class AlertWatch:
    """Finds the alerts that are due now, as Prometheus would."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], clock: Callable[[], float]) -> None:
        """Begin without readings; `run` looks again and again.

        Args:
            collect: returns the present metrics.
            clock: returns monotonic seconds.
        """
        self._collect = collect
        self._clock = clock
        #: times and readings of the last looks, oldest first; each has one reading for each alert, by its name
        self._looks: deque[tuple[float, dict[str, Reading]]] = deque()
        #: time since which the condition of an alert is met, by the alert's name
        self._since: dict[str, float] = {}

    def look(self) -> None:
        """Read the metrics, and note which conditions are met."""
        at = self._clock()
        samples = [sample for metric in self._collect() for sample in metric.samples]
        alerts = [alert for group in ALERTS.values() for alert in group]
        now = {alert.name: alert.condition.read(samples) for alert in alerts}
        self._looks.append((at, now))
        while self._looks[0][0] < at - WINDOW * 60:
            self._looks.popleft()
        _, before = self._looks[0]
        met = [alert.name for alert in alerts if alert.condition.met(now[alert.name], before[alert.name])]
        self._since = {name: self._since.get(name, at) for name in met}

    def firing(self) -> list[tuple[Alert, float]]:
        """Return the alerts that are due since the latest look, each with the seconds since its condition is met."""
        now = self._clock()
        return [
            (alert, now - self._since[alert.name])
            for group in ALERTS.values()
            for alert in group
            if alert.name in self._since and now - self._since[alert.name] >= alert.minutes * 60
        ]

    async def run(self) -> NoReturn:
        """Look again and again until cancelled. A failure is logged, and the next look follows."""
        await forever(self._look_and_wait)

    async def _look_and_wait(self) -> None:
        self.look()
        await asyncio.sleep(INTERVAL)
