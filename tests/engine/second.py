"""A second engine of this machine, which tests may break: with its own network, data and containers.

It runs in a network namespace, so its bridges and firewall are not the machine's. Its data is on a disk of its own,
which can be filled. `KGW_ENGINE_PROGRAMS` names a directory with other programs of an engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMAGE = "kernel-gateway/python:latest"
#: as the wrapper's setup registers it
RUNSC: Mapping[str, Any] = json.loads(Path("/etc/docker/daemon.json").read_text())["runtimes"]["runsc"]
#: bytes of the disk for its data: the image, and room for sessions
DISK = 12 * 1024**3
#: seconds until it answers, and until the image is loaded
STARTED, LOADED = 60.0, 240.0


@dataclass(frozen=True)
class SecondEngine:
    """An engine that runs."""

    socket: Path
    namespace: str
    data: Path
    place: Path

    def inside(self, *command: str, timeout: float = 280.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in its network, for which it is the only engine."""
        return subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.namespace}", "env", f"DOCKER_HOST=unix://{self.socket}", *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    def doctor(self) -> tuple[int, str]:
        """Return how `doctor --prove` ends, and what it says."""
        state = str(self.place / "state")
        command = [sys.executable, "-m", "kernel_gateway", "doctor", "--prove", "--state-dir", state]
        done = self.inside(*command, check=False)
        print(done.stdout)  # for the report of a test, also of one that has passed (`-rP`)
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        return done.returncode, done.stdout

    def left(self) -> list[str]:
        """Return its containers, volumes and networks."""
        found = []
        for listing in (["ps", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "--format", "{{.Name}}"]):
            found += self.inside("docker", *listing).stdout.split()
        rules = self.inside("iptables", "-S").stdout.splitlines()
        return sorted({*found} - {"bridge", "host", "none"}) + [rule for rule in rules if "KGW-" in rule]


@contextlib.contextmanager
def disk(place: Path) -> Iterator[Path]:
    """A disk of its own for the data, which outlives single engines: the image is loaded once."""
    file, data = place / "disk", place / "data"
    with file.open("wb") as image:
        image.truncate(DISK)
    run("mkfs.ext4", "-q", "-F", str(file))
    data.mkdir()
    run("mount", "-o", "loop", str(file), str(data))
    try:
        yield data
    finally:
        run("umount", "-l", str(data))
        file.unlink()


@contextlib.contextmanager
def engine(place: Path, data: Path, runsc: Mapping[str, Any] = RUNSC) -> Iterator[SecondEngine]:
    """An engine on that disk.

    Args:
        place: directory for everything else.
        data: the disk.
        runsc: what it takes for the runtime `runsc`.
    """
    namespace, socket = f"kgw-second-{os.getpid()}", place / "docker.sock"
    config = place / "daemon.json"
    config.write_text(json.dumps({"runtimes": {"runsc": runsc}}))
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")
    with contextlib.ExitStack() as ending, (place / "log").open("ab") as log:
        ending.callback(run, "ip", "netns", "del", namespace)
        programs = os.environ.get("KGW_ENGINE_PROGRAMS", "")  # noqa: TID251 - for an engine that was built by hand
        path = ":".join(filter(None, [programs, os.environ["PATH"]]))  # noqa: TID251 - a child gets this environment
        files = ["--data-root", str(data), "--exec-root", str(place / "exec"), "--pidfile", str(place / "pid")]
        enter = ["nsenter", f"--net=/run/netns/{namespace}", "env", f"PATH={path}"]
        process = subprocess.Popen(
            [*enter, "dockerd", "--config-file", str(config), "--host", f"unix://{socket}", *files],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        ending.callback(_end, process)
        made = SecondEngine(socket, namespace, data, place)
        deadline = time.monotonic() + STARTED
        while made.inside("docker", "version", check=False).returncode:
            assert process.poll() is None, (place / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (place / "log").read_text()[-3000:]
            time.sleep(0.2)
        if not made.inside("docker", "image", "ls", "-q", IMAGE).stdout:
            _load(made)
        yield made


def _load(made: SecondEngine) -> None:
    with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saved:
        load = ["docker", "--host", f"unix://{made.socket}", "load"]
        subprocess.run(load, stdin=saved.stdout, capture_output=True, timeout=LOADED, check=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)  # nsenter and env have become the engine itself
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, capture_output=True, timeout=60, check=True)
