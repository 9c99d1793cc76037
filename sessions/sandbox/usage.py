"""The present use of processors, memory and disk by all containers of a sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sessions.guest.workspace import Space, space_of
from sessions.sandbox.sandbox import Sandbox

#: seconds over which the use of processors is measured
SPAN = 0.5


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """Use and limits of a sandbox: of its own container and of one container for each kernel, together."""

    #: average number of processors in use
    processors: float
    processors_max: float
    #: bytes of memory
    memory: int
    memory_max: int
    #: use of the disk by the shared files
    disk: Space


async def measure(sandbox: Sandbox) -> SandboxUse | None:
    """Measure a sandbox. This takes `SPAN` seconds and the time of a file operation.

    Returns:
        the figures. None means that the backend does not measure its containers.

    Raises:
        SessionError: when the sandbox has ended, or its own container cannot be started.
    """
    clock = asyncio.get_running_loop().time
    kernels = [session.container for session in sandbox.sessions()]
    handles = [await sandbox.ensure_container(), *(kernel for kernel in kernels if kernel is not None)]
    began, before = clock(), [handle.processor_seconds() for handle in handles]
    await asyncio.sleep(SPAN)
    took, containers, used, memory = clock() - began, 0, 0.0, 0
    for handle, earlier in zip(handles, before, strict=True):
        now, size = handle.processor_seconds(), handle.memory()
        if earlier is not None and now is not None and size is not None:  # otherwise the container has ended meanwhile
            containers, used, memory = containers + 1, used + now - earlier, memory + size
    if not containers:
        return None
    limits = sandbox.limits
    return SandboxUse(
        processors=used / took,
        processors_max=limits.cpus * containers,
        memory=memory,
        memory_max=limits.memory * containers,
        disk=await space_of(sandbox),
    )
