"""How a session gets a fresh kernel because its client has asked for one."""

from __future__ import annotations

from sessions.channels.hub import ChannelHub
from sessions.models import StateChange
from sessions.slot import KernelSlot


async def restart(slot: KernelSlot, channels: ChannelHub) -> None:
    """Give a session a fresh kernel on the same workspace. A running cell ends with the old one.

    Raises:
        SessionError: when the session was ended, or no kernel could be started; the session keeps the one it has.
    """
    notice = (StateChange.RESTARTED, "a restart was asked for")
    async with slot.replacing:
        await slot.sleeper.writing.wait()
        if slot.alive and not slot.listener.closed:
            # The new kernel first, for the workspace. Not "restarting": front ends take that for a death.
            channels.announce("starting")
            try:
                await slot.replace(*notice)
            finally:
                channels.announce("idle")
        else:
            slot.sleeper.give_up()
            await slot.ensure()
            slot.announce(*notice)
        channels.forget_loss()
