"""A cell that an earlier gateway started. No client waits for its result; the next cell waits for its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sessions.cells.transcript import Transcript
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import KernelDied
from sessions.model.tasks import spawn
from sessions.model.values import Timeouts

#: seconds between two requests to a busy kernel, which answers all of them when its cell has ended
ASK_AGAIN = 30.0
#: text in the transcript in place of the cell's code
CODE = "# a cell that ran when the gateway was restarted; its code and earlier output are not known any more"


class OrphanCell:
    """The cell that a kernel ran when it was taken over. Most kernels ran no cell."""

    def __init__(self, kernel: Kernel, transcript: Transcript, timeouts: Timeouts) -> None:
        self.kernel = kernel
        self._transcript = transcript
        self._timeouts = timeouts
        self._over = asyncio.Event()

    async def end(self, seconds: float) -> None:
        """Wait until the kernel is free or has ended.

        Args:
            seconds: deadline, in the kernel's time. Then the cell is interrupted, and the kernel is killed if the cell
                does not end.
        """
        waiting = [spawn(self._free(), "kernel free"), spawn(self.kernel.wait(), "kernel gone")]
        for task in waiting:
            task.add_done_callback(lambda _task: self._over.set())
        try:
            async with self.kernel.clock.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            if not await self.interrupt():
                await self.kernel.kill(KernelDied("a cell from before the gateway's restart did not end"))
        finally:
            for task in waiting:
                task.cancel()

    async def _free(self) -> None:
        """Wait until the kernel answers, which it does after its cell, and all the cell's messages have arrived."""
        answered = False
        while not answered:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN):
                    await self.kernel.connection.request("shell", "kernel_info_request", {})
                    answered = True
        await self.kernel.connection.ready()

    async def interrupt(self) -> bool:
        """Interrupt the cell.

        Returns:
            True if the cell ended.
        """
        return await self.kernel.interrupts.interrupt_until(self._over, self._timeouts.interrupt_step)

    def claim(self, message: Message) -> None:
        """Add the cell to the transcript at its first message, so that its remaining output is kept."""
        if message.parent.get("msg_type") == "execute_request" and message.type not in {"status", "execute_input"}:
            self._transcript.resume(message.parent_id, CODE)
