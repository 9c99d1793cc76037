"""The times that the gateway waits for a kernel that should have answered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for the end of a cell."""

    #: for its `idle` after its reply, and the other way round
    idle: float = 1.0
    #: after that, for proof that the kernel has nothing more to send
    proof: float = 10.0
    #: after each attempt to interrupt it
    interrupt_step: float = 2.0
    #: for its client to get its last events, before the end is recorded
    answer: float = 0.05
