"""`doctor --prove` on engines that are whole, and on engines that are broken. Each is a real one of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.proving import PROMISES
from tests.engine import second
from tests.engine.second import RUNSC, SecondEngine

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(600)]

#: gVisor's runtime without this project's wrapper, as far as it starts on kernels from 6 on
PLAIN = """#!/bin/sh
exec unshare -m sh -c 'mount -t tmpfs none /proc/sys/net && exec /usr/bin/runsc "$@"' sh "$@"
"""
#: makes the kernels' network, as a gateway does
NETWORK = """
from sessions.backends.docker.engine import engine
from sessions.backends.docker.isolation import network
network.ensure_network(engine.connect(), "kernel-gateway")
"""
#: bytes that a full disk has left
LEFT = 64 * 1024**2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("second")


@pytest.fixture(scope="module")
def data(place: Path) -> Iterator[Path]:
    with second.disk(place) as data:
        yield data


@pytest.fixture
def whole(place: Path, data: Path) -> Iterator[SecondEngine]:
    """An engine with which nothing is wrong; nothing may be left on it."""
    with second.engine(place, data) as engine:
        yield engine
        assert engine.left() == []
        assert not (place / "state").exists()


def verdict(said: str, name: str) -> str:
    """Return what is said of one promise."""
    found = re.search(rf"^{re.escape(name)} … (.*)$", said, re.MULTILINE)
    assert found is not None, said
    return found.group(1)


def test_all_works_on_a_whole_engine(whole: SecondEngine) -> None:
    status, said = whole.doctor()
    assert status == 0, said
    for promise in PROMISES:
        outcome = verdict(said, promise.name)
        # this engine's network has no way to the internet
        assert outcome.startswith(("works", "slower than") if promise.name != "wall: internet" else "left out"), said
    assert re.search(r"^versions: Linux \S+, Docker \S+, containerd \S+, runsc \S+$", said, re.MULTILINE)


def test_a_plain_runtime_by_the_name_of_gvisor_is_refused(place: Path, data: Path) -> None:
    with second.engine(place, data, {"path": "runc"}) as engine:
        status, said = engine.doctor()
        assert status == 1
        assert verdict(said, "isolation test").startswith("refused: runtime 'runsc' is not gVisor"), said
        assert verdict(said, "start").startswith("refused: not tried"), said
        assert engine.left() == []


def test_a_runtime_without_checkpoints_is_refused_and_its_sessions_run(place: Path, data: Path) -> None:
    plain = place / "plain-runsc"
    plain.write_text(PLAIN)
    plain.chmod(0o755)
    with second.engine(place, data, {**RUNSC, "path": str(plain)}) as engine:
        status, said = engine.doctor()
        assert status == 1
        for name in ("isolation test", "start", "wall: host", "interrupt", "full workspace", "removed container"):
            assert verdict(said, name).startswith(("works", "slower than")), said
        assert verdict(said, "golden images").startswith("refused: "), said
        for name in ("restore", "checkpoint", "rollback", "branch", "sleep", "wake"):
            assert verdict(said, name).startswith("refused: not tried"), said
        assert engine.left() == []


def test_a_bridge_that_is_not_filtered_is_refused(place: Path, data: Path) -> None:
    """The engine switches the filter on with each network of this kind, so the network is there before."""
    with second.engine(place, data) as engine:
        engine.inside(sys.executable, "-c", NETWORK)
        engine.inside("sh", "-c", "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables")
        status, said = engine.doctor()
        left = engine.left()
        engine.inside("docker", "network", "rm", "kernel-gateway")
        assert status == 1
        assert "PROBLEM  firewall: kernels could reach one another: sysctl -w" in said
        assert "start …" not in said
        assert left == ["kernel-gateway"]  # it was not made by the proof


def test_a_full_disk_is_refused(whole: SecondEngine) -> None:
    filling = whole.data / "filling"
    free = int(whole.inside("stat", "-f", "-c", "%a", str(whole.data)).stdout)
    size = int(whole.inside("stat", "-f", "-c", "%S", str(whole.data)).stdout)
    whole.inside("fallocate", "-l", str(free * size - LEFT), str(filling))
    try:
        status, said = whole.doctor()
    finally:
        filling.unlink()
    assert status == 1
    assert re.search(r"PROBLEM  disk: \d\d MiB free", said), said
    assert "start …" not in said
