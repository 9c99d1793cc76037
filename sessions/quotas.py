"""What tenants may have and use, in one place for every dialect and channel.

So a limit holds whichever way a cell came by. The rules are in `admission.py` and `usage.py`; here is who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from sessions.admission import Admission
from sessions.errors import QuotaExceeded
from sessions.usage import Allowance, Kind, Usage

#: executions of all tenants at a time
CONCURRENT = 100
#: seconds after which a refused execution may be tried again
RETRY_AFTER = 1
#: what an execution uses
_OF_EXECUTIONS = (Kind.SECONDS, Kind.OUTPUT)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at a time, and use in the course of time."""

    sessions: int = 50
    #: executions that run, or wait for their turn in their session
    executions: int = 10
    #: executions that wait to become one of those; one more is refused
    queued: int = 0
    #: seconds that each may wait
    queue_timeout: float = 30.0
    allowance: Allowance = field(default_factory=Allowance)


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of something a tenant has or has used, and how much it may."""

    #: None: it is not counted, because there is no limit
    used: float | None
    #: None: no limit
    max: float | None


class Quotas:
    """Counts of all tenants."""

    def __init__(self, limits: TenantLimits, clock: Callable[[], float], concurrent: int = CONCURRENT) -> None:
        """Begin with nothing.

        Args:
            limits: of each tenant.
            clock: seconds.
            concurrent: executions of all tenants at a time.
        """
        self._limits = limits
        self._concurrent = concurrent
        self._admission = Admission(limits.executions, concurrent)
        self._usage = Usage(limits.allowance, clock)

    @property
    def running(self) -> int:
        """Executions of all tenants."""
        return self._admission.running

    @property
    def waiting(self) -> int:
        """Executions of all tenants that wait to be admitted."""
        return self._admission.waiting

    def admit_session(self, present: int) -> None:
        """Allow a tenant one more session.

        Args:
            present: how many it has now.

        Raises:
            QuotaExceeded: it has as many as it may.
        """
        if present >= self._limits.sessions:
            raise QuotaExceeded(
                f"at most {self._limits.sessions} sessions at a time", limit="sessions", max=self._limits.sessions
            )

    def under_way(self) -> int:
        """Executions of all tenants, running or waiting for their turn."""
        return self.running + self.waiting

    def standing(self, tenant: str, sessions: int) -> dict[str, Standing]:
        """All that a tenant has and may, by what it is.

        Args:
            tenant: who.
            sessions: how many it has now.
        """
        limits, allowance = self._limits, self._limits.allowance
        at_a_time = {
            "sessions": Standing(sessions, limits.sessions),
            "executions": Standing(self._admission.under_way(tenant), limits.executions),
            "queued": Standing(self._admission.queued(tenant), limits.queued),
        }
        return at_a_time | {
            kind.value: Standing(self._usage.used(tenant, kind), allowance.of(kind) or None) for kind in Kind
        }

    # -- executions -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execution(self, tenant: str) -> AsyncIterator[None]:
        """Count one execution for as long as the context lasts; wait until it may begin. Who leaves gives up its place.

        Raises:
            QuotaExceeded: too many wait already, it has waited too long, or its tenant has used up what it may.
        """
        self.permit(tenant)
        if not self._admission.enter(tenant):
            await self._turn(tenant)
        try:
            self.permit(tenant)  # others may have used it up meanwhile
            yield
        finally:
            self._admission.leave(tenant)

    @contextmanager
    def execution_now(self, tenant: str) -> Iterator[None]:
        """Count one execution that cannot wait for as long as the context lasts.

        Raises:
            QuotaExceeded: it may not begin now, or its tenant has used up what it may.
        """
        self.permit(tenant)
        if not self._admission.enter(tenant):
            raise self._refusal(tenant, "")
        try:
            yield
        finally:
            self._admission.leave(tenant)

    async def _turn(self, tenant: str) -> None:
        if self._admission.queued(tenant) >= self._limits.queued:
            raise self._refusal(tenant, f", and {self._limits.queued} that wait" if self._limits.queued else "")
        turn = asyncio.Event()
        place = self._admission.wait(tenant, turn.set)
        admitted = False
        try:
            async with asyncio.timeout(self._limits.queue_timeout):
                await turn.wait()
            admitted = True
        except TimeoutError:
            waited = f"; this one has waited {self._limits.queue_timeout:g} s"
            raise self._refusal(tenant, waited) from None
        finally:
            if not admitted:
                self._admission.withdraw(place)

    def _refusal(self, tenant: str, more: str) -> QuotaExceeded:
        if self._admission.full(tenant):
            limit, most, whose = "executions", self._limits.executions, "of a tenant"
        else:
            limit, most, whose = "executions_in_all", self._concurrent, "of all tenants"
        message = f"at most {most} executions {whose} at a time{more}"
        return QuotaExceeded(message, limit=limit, max=most, retry_after=RETRY_AFTER)

    # -- use ------------------------------------------------------------------------------------------------

    def permit(self, tenant: str) -> None:
        """Allow a tenant to run something.

        Raises:
            QuotaExceeded: it has used up what it may.
        """
        self._usage.permit(tenant, *_OF_EXECUTIONS)

    def charge_execution(self, tenant: str, seconds: float, output: int, ago: float = 0.0) -> None:
        """Count an execution that has ended.

        Args:
            tenant: whose.
            seconds: that it took.
            output: bytes that it put out.
            ago: seconds since its end; the older comes first.
        """
        self._usage.add(tenant, Kind.SECONDS, seconds, ago)
        self._usage.add(tenant, Kind.OUTPUT, output, ago)

    def charge_upload(self, tenant: str, size: int) -> None:
        """Count bytes of a file that a tenant sends, before they are written.

        Raises:
            QuotaExceeded: it has used up what it may.
        """
        self._usage.permit(tenant, Kind.UPLOAD)
        self._usage.add(tenant, Kind.UPLOAD, size)
