"""What the soak measures from outside: the gateway's process, and what the engine and the host have for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import docker

from tests.faults.health import threads
from tests.gateways import Gateway
from tests.host import shims
from tests.kernel_gateway.calls import metric

MIB = 1024**2


@dataclass(frozen=True)
class Reading:
    """One line of the soak's table."""

    #: resident memory of the gateway, in MiB
    memory: float
    descriptors: int
    threads: int
    #: tasks of its event loop
    tasks: int
    #: containers, volumes, mounts of volumes and engine's processes, besides those of warm kernels
    containers: int
    volumes: int
    mounts: int
    shims: int
    #: sleeping kernels and checkpoints on disk
    images: int
    #: containers and volumes that the gateway could not remove yet
    leftovers: int

    def row(self) -> str:
        """Return the cells of its line."""
        return " | ".join(f"{getattr(self, field.name):.0f}" for field in fields(self))


HEAD = " | ".join("memory MiB" if field.name == "memory" else field.name for field in fields(Reading))


class Gauges:
    """Reads what there is of one gateway. The engine's events tell which containers it has had."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._engine = docker.from_env(timeout=120)
        self._own = {"label": f"kernel-gateway.instance={gateway.instance}"}
        self._events = self._engine.api.events(decode=True, filters=self._own | {"type": "container"})
        self._had = {each["Id"] for each in self._containers()}
        threading.Thread(target=self._follow, daemon=True, name="events").start()

    def close(self) -> None:
        """Leave the engine."""
        self._events.close()
        self._engine.close()

    def _follow(self) -> None:
        for event in self._events:
            self._had.add(event["id"])

    def read(self) -> Reading:
        """Measure."""
        process = self._gateway.process.pid
        warm = round(metric(self._gateway, "kernel_gateway_warm_kernels"))
        return Reading(
            memory=self._gateway.memory() / MIB,
            descriptors=len(list(Path(f"/proc/{process}/fd").iterdir())),
            threads=threads(self._gateway),
            tasks=round(metric(self._gateway, "kernel_gateway_tasks")),
            containers=len(self._containers()) - warm,
            volumes=len(self._volumes(self._own)) - warm,
            mounts=self._mounts() - warm,
            shims=len(shims() & self._had) - warm,
            images=len(list((self._gateway.state_dir / "asleep").glob("*"))),
            leftovers=round(metric(self._gateway, "kernel_gateway_leftovers")),
        )

    def _containers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._engine.api.containers(all=True, filters=self._own)
        return found

    def _volumes(self, filters: dict[str, str]) -> set[str]:
        return {volume["Name"] for volume in self._engine.api.volumes(filters=filters)["Volumes"] or []}

    def _mounts(self) -> int:
        """Count the mounts of volumes that are no other gateway's: also of those that the engine has forgotten.

        Other gateways begin and end meanwhile, so only what is mounted before and after the look at the engine counts.
        """
        before = _mounted()
        others = self._volumes({}) - self._volumes(self._own)
        return len((before & _mounted()) - others)


def _mounted() -> set[str]:
    """Return the volumes of gateways that are mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4]) for line in lines]
    return {point.parent.name for point in points if point.parent.name.startswith("kernel-gateway-")}
