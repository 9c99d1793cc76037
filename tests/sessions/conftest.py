"""Fixtures of the domain's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.model.values import SandboxSpec, SessionKey
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session
from tests.fakes import World


@pytest.fixture
async def session(world: World) -> Session:
    """A session that is ready for its first cell."""
    return await world.session()


@pytest.fixture
async def sandbox(world: World) -> AsyncIterator[Sandbox]:
    """A sandbox with an environment of its own, closed afterwards."""
    spec = SandboxSpec("template", env={"A": "own"}, max_execute_timeout=60.0)
    sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), spec)
    yield sandbox
    await sandbox.close()


@pytest.fixture
def place(world: World, sandbox: Sandbox) -> Path:
    """The directory with the sandbox's files."""
    return world.backend.root / "workspaces" / sandbox.workspace
