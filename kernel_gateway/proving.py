"""The proof of what is promised, on the operator's own engine: a whole gateway that listens nowhere.

It has the operator's settings, a state directory of its own, and no client but the proof. What a proof that was killed
has left (containers, volumes, files) is found by the next one, because both use the same directory.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from sessions.proving import Ground, Verdict, prove

#: name of the state directory
_NAME = "kernel-gateway-prove"
#: promises that are about checkpoints, and about sleep
_CHECKPOINTS = ("first checkpoints", "restore", "checkpoint", "rollback", "branch", "sleep", "wake")
_SLEEP = ("checkpoint", "rollback", "branch", "sleep", "wake")


async def verdicts(settings: Settings, begins: Callable[[str], None]) -> AsyncGenerator[Verdict, None]:
    """Prove what is promised with these settings; nothing is left behind when this ends, also when it is cancelled.

    Args:
        settings: of the deployment.
        begins: called with the name of each promise that is about to be tried.

    Raises:
        AlreadyRunning: when another proof with this state directory is under way.
        OSError: when the state directory cannot be made.
    """
    from sessions.backends.docker.isolation.outside import remove_container  # noqa: PLC0415 - takes a tenth of a start

    async def remove(container: str) -> None:
        await asyncio.to_thread(remove_container, container)

    directory = _place(settings.state_dir.expanduser()) / _NAME
    service = Service(_alone(settings, directory))
    try:
        ground = Ground(service.backend, service.readiness, service.registry, remove)
        async with aclosing(prove(ground, left_out(settings), begins)) as found:
            async for verdict in found:
                yield verdict
    finally:
        await service.stop()
        shutil.rmtree(directory, ignore_errors=True)  # what cannot be deleted is used by the next proof


def left_out(settings: Settings) -> dict[str, str]:
    """Return the promises that these settings do not make, with the reason."""
    reasons: dict[str, str] = {}
    if not settings.sleep_disk:
        reasons |= dict.fromkeys(_SLEEP, "`sleep_disk` is 0")
    if settings.files == "memory":
        reasons |= dict.fromkeys(_SLEEP, "`files` is `memory`")
    if settings.checkpoints == "off":
        reasons |= dict.fromkeys(_CHECKPOINTS, "`checkpoints` is off")
    return reasons


def _alone(settings: Settings, directory: Path) -> Settings:
    """Return the settings of a gateway for the proof alone: no other client, and no limit that is for clients."""
    return settings.model_copy(
        update={
            "state_dir": directory,
            "secrets_key_file": None,
            "isolation": "docker",
            "egress_allow": [],
            "keep_sessions": False,
            "pool_size": 0,
            "code_policy": "none",
            "max_sessions_per_tenant": Settings.model_fields["max_sessions_per_tenant"].default,
            "max_execution_seconds": 0,
            "max_total_output_bytes": 0,
            "max_upload_bytes": 0,
            "max_share_per_tenant": 1.0,
        }
    )


def _place(state_dir: Path) -> Path:
    """Return a directory on the disk of the state directory, which need not exist."""
    return next(each for each in (state_dir, *state_dir.parents) if each.is_dir())
