"""The quotas of tenants. Every dialect and channel asks this module, so a limit holds for all cells.

The rules are in `admission.py` and `usage.py`. This module waits for turns and raises the errors.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from sessions.model.errors import QuotaExceeded
from sessions.model.tenant_limits import OwnLimits, OwnLimitsOf, at_most
from sessions.tenants.admission import Admission
from sessions.tenants.usage import Allowance, Kind, Usage
from sessions.tenants.waiting import wait_for_turn

#: maximum executions of all tenants at a time
CONCURRENT = 100
#: seconds after which a refused execution may be tried again: other executions may end at any time
RETRY_AFTER = 1
#: kinds of use that are counted for an execution
_OF_EXECUTIONS = (Kind.SECONDS, Kind.OUTPUT)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at a time, and may use within a window."""

    sessions: int = 50
    #: executions that run, or wait for their turn in their session
    executions: int = 10
    #: executions that wait to be admitted; one more is refused
    queued: int = 0
    #: seconds that an execution may wait to be admitted
    queue_timeout: float = 30.0
    allowance: Allowance = field(default_factory=Allowance)


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Present value and limit of one quota of a tenant."""

    #: present value. None means that it is not counted, because there is no limit.
    used: float | None
    #: limit. None means no limit.
    max: float | None


class Quotas:
    """The quotas of all tenants."""

    def __init__(
        self,
        limits: TenantLimits,
        clock: Callable[[], float],
        concurrent: int = CONCURRENT,
        share: float = 1.0,
        own: OwnLimitsOf = OwnLimits,
    ) -> None:
        """Start without executions and use.

        Args:
            limits: limits of each tenant.
            clock: function that returns seconds.
            concurrent: maximum executions of all tenants at a time.
            share: part, from 0 to 1, that one tenant may have of what the other tenants leave of `concurrent`.
            own: returns the limits that a tenant has of its own.
        """
        self._limits = limits
        self._own = own
        self._concurrent = concurrent
        self._admission = Admission(limits.executions, concurrent, share)
        self._usage = Usage(limits.allowance, clock)

    @property
    def running(self) -> int:
        """Number of admitted executions of all tenants."""
        return self._admission.running

    @property
    def waiting(self) -> int:
        """Number of executions of all tenants that wait to be admitted."""
        return self._admission.waiting

    def admit_session(self, tenant: str, present: int, room_in: float) -> None:
        """Check that a tenant may have one more session or sandbox.

        Args:
            tenant: name of the tenant.
            present: number of its sessions and sandboxes now.
            room_in: seconds until the first of these is ended as idle, if no client uses it.

        Raises:
            QuotaExceeded: when the tenant has the maximum number.
        """
        if present >= (most := self._sessions(tenant)):
            raise QuotaExceeded(
                f"at most {most} sessions and sandboxes at a time{self._own(tenant).note('sessions')}",
                limit="sessions",
                max=most,
                retry_after=max(RETRY_AFTER, math.ceil(room_in)),
            )

    def _sessions(self, tenant: str) -> int:
        return at_most(self._limits.sessions, self._own(tenant).sessions)

    def under_way(self) -> int:
        """Return the number of executions of all tenants, admitted or waiting."""
        return self.running + self.waiting

    def uses(self, tenant: str, sessions: int) -> dict[str, QuotaUse]:
        """Return all quotas of a tenant by name.

        Args:
            tenant: name of the tenant.
            sessions: number of its sessions and sandboxes now.
        """
        limits, allowance = self._limits, self._limits.allowance
        at_a_time = {
            "sessions": QuotaUse(sessions, self._sessions(tenant)),
            "executions": QuotaUse(self._admission.under_way(tenant), limits.executions),
            "queued": QuotaUse(self._admission.queued(tenant), limits.queued),
        }
        return at_a_time | {
            kind.value: QuotaUse(self._usage.used(tenant, kind), allowance.of(kind) or None) for kind in Kind
        }

    # -- executions -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execution(self, tenant: str) -> AsyncIterator[None]:
        """Wait until an execution may begin, and count it inside the `with` block.

        A cancelled wait gives up its place in the queue.

        Raises:
            QuotaExceeded: when too many executions wait, this one waited too long, or the allowance is used up.
        """
        self.permit(tenant)
        if not self._admission.enter(tenant):
            await self._wait_for_turn(tenant)
        try:
            self.permit(tenant)  # other executions may have used up the allowance meanwhile
            yield
        finally:
            self._admission.leave(tenant)

    @contextmanager
    def execution_now(self, tenant: str) -> Iterator[None]:
        """Count one execution, which cannot wait, inside the `with` block.

        Raises:
            QuotaExceeded: when the execution may not begin now, or the tenant's allowance is used up.
        """
        self.permit(tenant)
        if not self._admission.enter(tenant):
            raise self._refusal(tenant, "")
        try:
            yield
        finally:
            self._admission.leave(tenant)

    async def _wait_for_turn(self, tenant: str) -> None:
        if self._admission.queued(tenant) >= self._limits.queued:
            raise self._refusal(tenant, f", and {self._limits.queued} that wait" if self._limits.queued else "")
        try:
            await wait_for_turn(self._admission, tenant, self._limits.queue_timeout)
        except TimeoutError:
            waited = f"; this one has waited {self._limits.queue_timeout:g} s"
            raise self._refusal(tenant, waited) from None

    def _refusal(self, tenant: str, more: str) -> QuotaExceeded:
        if self._admission.under_way(tenant) >= self._limits.executions:
            limit, most, whose = "executions", self._limits.executions, "of a tenant"
        else:
            limit, most, whose = "executions_in_all", self._concurrent, "of all tenants"
        message = f"at most {most} executions {whose} at a time{more}"
        return QuotaExceeded(message, limit=limit, max=most, retry_after=RETRY_AFTER)

    # -- use ------------------------------------------------------------------------------------------------

    def permit(self, tenant: str) -> None:
        """Check that a tenant may run an execution.

        Raises:
            QuotaExceeded: when the tenant's allowance is used up.
        """
        self._usage.permit(tenant, *_OF_EXECUTIONS)

    def charge_execution(self, tenant: str, seconds: float, output: int, ago: float = 0.0) -> None:
        """Count the use of an execution that has ended.

        Args:
            tenant: tenant of the execution.
            seconds: run time of the execution.
            output: bytes of its output.
            ago: seconds since its end. The caller must count older executions first.
        """
        self._usage.add(tenant, Kind.SECONDS, seconds, ago)
        self._usage.add(tenant, Kind.OUTPUT, output, ago)

    def charge_upload(self, tenant: str, size: int) -> None:
        """Count bytes of a file that a tenant uploads, before they are written.

        Raises:
            QuotaExceeded: when the tenant's allowance is used up.
        """
        self._usage.permit(tenant, Kind.UPLOAD)
        self._usage.add(tenant, Kind.UPLOAD, size)
