"""What a session begins with: nothing, what an earlier gateway has left, or a checkpoint of another session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sessions.asleep import Snapshot
from sessions.backends.base import Launch
from sessions.kernels.kernel import Kernel
from sessions.store.session_records import ContainerRecord

#: starts a kernel in a way of its own
Start = Callable[[Launch], Awaitable[Kernel]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a session begins with."""

    #: the kernel that an earlier gateway has left; None: there is none
    left: ContainerRecord | None = None
    #: the snapshots that an earlier gateway has left
    snapshots: tuple[Snapshot, ...] = ()
    #: starts its first kernel; None: it is a new one
    start: Start | None = None


NOTHING = Beginning()
