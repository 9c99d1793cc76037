"""How a session falls asleep: its kernel's memory is written, recorded, and only then the kernel is ended."""

from __future__ import annotations

from functools import partial

from sessions.asleep import SleepFailed
from sessions.errors import LedgerUnavailable
from sessions.slot import KernelSlot
from sessions.states import State


async def fall_asleep(slot: KernelSlot) -> str:
    """Write the memory of a session's idle kernel to disk, and end the kernel. Clients that come meanwhile wait.

    Returns:
        why that was not possible; the kernel goes on then. Empty: it sleeps.
    """
    return await slot.sleeper.writing.run(partial(_fall_asleep, slot))


async def _fall_asleep(slot: KernelSlot) -> str:
    kernel = slot.kernel
    if kernel is None or slot.state is not State.IDLE or slot.identity.spec.throwaway:
        return "it has no idle kernel"
    try:
        image = await slot.sleeper.take(kernel)
    except SleepFailed as error:
        return str(error)
    if slot.listener.closed or slot.kernel is not kernel:
        await slot.sleeper.give_back(kernel, image)
        return "the kernel was ended or replaced"
    try:
        recorded = slot.record.kernel(kernel, slot.notice, image)
    except LedgerUnavailable as error:
        await slot.sleeper.give_back(kernel, image)
        return error.message
    slot.kernel = None
    slot.move(State.ASLEEP)
    slot.listener.fell_asleep()
    await slot.snapshots.forget_ahead()
    await slot.sleeper.begin(kernel, recorded)
    return ""
