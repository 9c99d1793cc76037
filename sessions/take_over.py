"""How a session continues with the kernel that an earlier gateway has left."""

from __future__ import annotations

from sessions.backends.base import KernelHandle
from sessions.errors import KernelDied, SessionClosed, SessionError
from sessions.kernels.kernel import Kernel
from sessions.models import StateChange
from sessions.slot import KernelSlot
from sessions.tasks import log_failure


async def take_over(slot: KernelSlot, handle: KernelHandle | None, note: str) -> Kernel | None:
    """Continue with the kernel that an earlier gateway has left.

    Args:
        slot: of the session.
        handle: handle of the kernel; None: the kernel is gone.
        note: reason that the next execution reports, unless variables were lost.

    Returns:
        the kernel; None: there is none to continue with.
    """
    slot.left_container = None
    kernel: Kernel | None = None
    lost: SessionError = KernelDied("the kernel could not be taken over when the gateway was restarted")
    with log_failure(f"taking over the kernel of {slot.key}"):
        try:
            if handle is None:
                raise KernelDied("the kernel ended while the gateway was away")
            kernel = await Kernel.take_over(slot.launch, handle)
        except SessionError as error:
            lost = error
    if slot.listener.closed:
        if kernel is not None:
            await kernel.kill(SessionClosed())
        await slot.delete_files()
        return None
    if kernel is None:
        slot.lost(lost)
        return None
    slot.install(kernel)
    if slot.notice.change is StateChange.PRESERVED:
        slot.announce(StateChange.PRESERVED, note)
    return kernel
