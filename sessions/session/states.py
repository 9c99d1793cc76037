"""The states of a session, and the moves between them. Pure."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a session is doing."""

    #: its kernel is being started
    STARTING = "starting"
    #: the session waits for a cell
    IDLE = "idle"
    #: the session runs a cell
    BUSY = "busy"
    #: its kernel's memory is on disk, and the next use wakes the kernel
    ASLEEP = "asleep"
    #: its kernel is gone, and the next cell starts another kernel
    DEAD = "dead"
    #: the session was ended
    CLOSED = "closed"


#: allowed moves; all others are illegal
MOVES = {
    State.STARTING: {State.IDLE, State.ASLEEP, State.DEAD, State.CLOSED},
    State.IDLE: {State.BUSY, State.ASLEEP, State.DEAD, State.CLOSED},
    State.BUSY: {State.IDLE, State.DEAD, State.CLOSED},
    State.ASLEEP: {State.STARTING, State.DEAD, State.CLOSED},
    State.DEAD: {State.STARTING, State.CLOSED},
    State.CLOSED: set[State](),
}
