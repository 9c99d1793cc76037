"""Waits for a tenant's turn. `admission.py` decides whose turn it is."""

from __future__ import annotations

import asyncio

from sessions.tenants.admission import Admission


async def wait_for_turn(admission: Admission, tenant: str, seconds: float | None) -> None:
    """Begin at once, or wait for the tenant's turn. At the end of the work, the caller must call `Admission.leave`.

    Args:
        admission: decides about this kind of work.
        tenant: tenant of the work.
        seconds: longest wait in seconds. None means no limit.

    Raises:
        TimeoutError: when the turn did not come in time. Then, as after a cancellation, `leave` must not be called.
    """
    if admission.enter(tenant):
        return
    turn = asyncio.Event()
    ticket = admission.wait(tenant, turn.set)
    try:
        async with asyncio.timeout(seconds):
            await turn.wait()
    except BaseException:
        admission.withdraw(ticket)
        raise
