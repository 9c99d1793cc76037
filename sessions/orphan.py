"""A cell that ran on when its gateway was killed: nobody waits for its result, and the next cell waits for its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sessions.errors import KernelDied
from sessions.execution import Patience
from sessions.kernel import Kernel
from sessions.messages import Message
from sessions.tasks import spawn
from sessions.transcript import Transcript

#: seconds after which a kernel is asked again: what is asked of it waits there, and is all answered in the end
ASK_AGAIN = 30.0
#: what the transcript has in place of the cell's code
CODE = "# a cell that ran when the gateway was restarted; its code and earlier output are not known any more"


class Orphan:
    """What a kernel was at when it was taken over; mostly nothing."""

    def __init__(self, kernel: Kernel, transcript: Transcript, patience: Patience) -> None:
        self.kernel = kernel
        self._transcript = transcript
        self._patience = patience
        self._over = asyncio.Event()

    async def end(self, seconds: float) -> None:
        """Wait until the kernel is free, or gone.

        Args:
            seconds: after which the cell is interrupted, and the kernel ended when that does not help.
        """
        waiting = [spawn(self._free(), "kernel free"), spawn(self.kernel.wait(), "kernel gone")]
        for task in waiting:
            task.add_done_callback(lambda _task: self._over.set())
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            if not await self.interrupt():
                await self.kernel.kill(KernelDied("a cell from before the gateway's restart ran on and on"))
        finally:
            for task in waiting:
                task.cancel()

    async def _free(self) -> None:
        """Wait until the kernel answers, which it does after its cell, and all that the cell has said is here."""
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
            whether it ended.
        """
        return await self.kernel.climb(self._over, self._patience.rung)

    def claim(self, message: Message) -> None:
        """Let the transcript keep what it still says."""
        if message.parent.get("msg_type") == "execute_request" and message.type not in {"status", "execute_input"}:
            self._transcript.resume(message.parent_id, CODE)
