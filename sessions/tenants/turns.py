"""The wait for a turn; the rules, by which tenants take turns, are in `admission.py`."""

from __future__ import annotations

import asyncio

from sessions.tenants.admission import Admission


async def take_turn(admission: Admission, tenant: str, seconds: float | None) -> None:
    """Begin at once, or wait for the tenant's turn. Then `Admission.leave` must follow.

    Args:
        admission: what runs and what waits.
        tenant: tenant that the work is for.
        seconds: longest wait; None: no limit.

    Raises:
        TimeoutError: when the turn did not come in time. Then, as after a cancellation, no place is kept.
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
