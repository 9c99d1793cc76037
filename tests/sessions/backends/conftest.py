"""The backend that several files of tests use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from sessions.backends.docker.profile import INSTANCE_LABEL
from tests.attacks.bench import forget_network
from tests.sessions.backends.bed import INSTANCE, NETWORK, Bed


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """The images of all these tests; at the end they, the network and the workspaces are removed."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
    with closing(docker.from_env()) as client:
        for container in client.containers.list(all=True, filters={"label": f"{INSTANCE_LABEL}={INSTANCE}"}):
            container.remove(force=True)
        for volume in client.volumes.list(filters={"label": f"{INSTANCE_LABEL}={INSTANCE}"}):
            volume.remove()
    forget_network(NETWORK)


@pytest.fixture
async def bed(nothing_left: None, place: Path) -> AsyncIterator[Bed]:
    bed = Bed(place)
    await bed.ready()
    yield bed
    await bed.backend.close()
    shutil.rmtree(bed.images, ignore_errors=True)
