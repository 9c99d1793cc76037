"""Fixtures of the domain's tests."""

from __future__ import annotations

import pytest

from sessions.session import Session
from tests.fakes import World


@pytest.fixture
async def session(world: World) -> Session:
    """A session that is ready for its first cell."""
    return await world.session()
