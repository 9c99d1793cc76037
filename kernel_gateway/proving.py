"""Proves the project's promises on the operator's own engine, with a whole gateway that listens on no port.

That gateway has the operator's settings, its own state directory, and no client except the proof. If a proof is killed,
the next proof removes what is left of it (containers, volumes, files), because both use the same state directory.
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
#: promises that need golden images, and those that need sleep
_GOLDEN = ("golden images", "restore", "checkpoint", "rollback", "branch", "sleep", "wake")
_SLEEP = ("checkpoint", "rollback", "branch", "sleep", "wake")


async def verdicts(settings: Settings, begins: Callable[[str], None]) -> AsyncGenerator[Verdict, None]:
    """Try each promise that these settings make, and yield its verdict.

    At the end, or when cancelled, the proof removes everything that it has made.

    Args:
        settings: settings of the deployment.
        begins: called with the name of each promise before the promise is tried.

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
        shutil.rmtree(directory, ignore_errors=True)  # the next proof uses what cannot be deleted


def left_out(settings: Settings) -> dict[str, str]:
    """Return the reason for each promise that these settings do not make, by the promise's name."""
    reasons: dict[str, str] = {}
    if not settings.sleep_disk:
        reasons |= dict.fromkeys(_SLEEP, "`sleep_disk` is 0")
    if settings.files == "memory":
        reasons |= dict.fromkeys(_SLEEP, "`files` is `memory`")
    if settings.golden_images == "off":
        reasons |= dict.fromkeys(_GOLDEN, "`golden_images` is off")
    return reasons


def _alone(settings: Settings, directory: Path) -> Settings:
    """Return the operator's settings without those that serve other clients or limit them."""
    return settings.model_copy(
        update={
            "state_dir": directory,
            "secrets_key_file": None,
            "isolation": "docker",
            "egress_allow": [],
            "keep_sessions": False,
            "pool_size": 0,
            "sandbox_pool_size": 0,
            "code_policy": "none",
            "max_sessions_per_tenant": Settings.model_fields["max_sessions_per_tenant"].default,
            "max_execution_seconds": 0,
            "max_total_output_bytes": 0,
            "max_upload_bytes": 0,
            "max_share_per_tenant": 1.0,
        }
    )


def _place(state_dir: Path) -> Path:
    """Return the state directory, or its nearest existing parent: a directory on the same disk."""
    return next(each for each in (state_dir, *state_dir.parents) if each.is_dir())
