"""A client of the native API, for programs: `from kernel_gateway.client import Session`.

It needs only httpx, and loads nothing of the gateway. `AsyncSession` has each call once, as a coroutine; `Session` has
the same calls for programs without an event loop (`blocking.py` says how).
"""

from kernel_gateway.client.errors import ClientError, GatewayError, Unreachable
from kernel_gateway.client.results import CellFailed, Event, Result
from kernel_gateway.client.session import AsyncSession, Session

__all__ = [
    "AsyncSession",
    "CellFailed",
    "ClientError",
    "Event",
    "GatewayError",
    "Result",
    "Session",
    "Unreachable",
]
