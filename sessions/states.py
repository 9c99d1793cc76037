"""What a session can be doing, and what may follow what. Pure."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a session is doing."""

    #: its kernel is being started
    STARTING = "starting"
    #: it waits for a cell
    IDLE = "idle"
    #: it runs a cell
    BUSY = "busy"
    #: its kernel is gone; the next cell starts another
    DEAD = "dead"
    #: it was ended
    CLOSED = "closed"


#: An illegal move is a missing entry.
MOVES = {
    State.STARTING: {State.IDLE, State.DEAD, State.CLOSED},
    State.IDLE: {State.BUSY, State.DEAD, State.CLOSED},
    State.BUSY: {State.IDLE, State.DEAD, State.CLOSED},
    State.DEAD: {State.STARTING, State.CLOSED},
    State.CLOSED: set[State](),
}
