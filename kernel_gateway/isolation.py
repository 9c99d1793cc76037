"""Makes the backend that the settings ask for, and checks what it needs on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kernel_gateway import state_dir
from kernel_gateway.config import Settings
from kernel_gateway.observe import logs
from kernel_gateway.wire import descriptors
from sessions.backends.abilities import Finding
from sessions.backends.base import KERNEL_IMAGE, Backend
from sessions.backends.process import ProcessBackend
from sessions.model.egress import host_and_port
from sessions.model.errors import InvalidRequest
from sessions.model.kernelspecs import KernelSpecs
from sessions.store.reserve import room_in
from sessions.store.sync import disk_full_error

if TYPE_CHECKING:
    from sessions.backends.docker.profile import DockerSettings
    from sessions.backends.kubernetes import KubernetesBackend

log = structlog.get_logger()

#: what an operator does about kernels that cannot start, because isolation `auto` finds no engine
ENGINE_OR_BY_NAME = "start the engine; or set isolation to `process`, which is no sandbox"


def make_backend(
    settings: Settings, instance: str, egress_secret: str, specs: KernelSpecs, key: Callable[[], bytes]
) -> Backend:
    """Make the backend that the settings ask for.

    `auto` means sandboxed kernels. Plain processes are made only where nobody relies on a sandbox: when no engine
    answers, the settings have no keys, and no gateway has used an engine with this state directory.

    Args:
        settings: settings of the deployment.
        instance: id of this installation.
        egress_secret: secret from which the passwords for the egress proxy are made.
        specs: kernelspecs of all languages.
        key: returns the installation's key, which encrypts sleeping memory.

    Raises:
        InvalidRequest: when the library that speaks with a cluster is needed and not installed.
    """
    if settings.isolation == "process":
        return _processes(settings)
    if settings.isolation == "kubernetes":
        return _kubernetes(settings, instance)
    from sessions.backends import docker  # noqa: PLC0415 - the engine's client takes a tenth of a start

    if settings.isolation == "auto" and not docker.engine_answers():
        relied_on = _who_relies_on_a_sandbox(settings)
        if relied_on is None:
            return _processes(settings)
        log.warning("no engine answers, and plain processes are not used", reason=relied_on, fix=ENGINE_OR_BY_NAME)
    return docker.DockerBackend(_docker_settings(settings, instance, egress_secret, specs, key), logs.egress)


def _who_relies_on_a_sandbox(settings: Settings) -> str | None:
    """Return why kernels of this gateway must not be plain processes unless they are asked for by name, or None."""
    if not settings.loopback or settings.keys or settings.access_keys or settings.admin_key:
        return "the settings have keys"
    if state_dir.was_sandboxed(settings.state_dir.expanduser()):
        return "an earlier gateway with this state directory had sandboxed kernels"
    return None


def _processes(settings: Settings) -> ProcessBackend:
    return ProcessBackend(settings.state_dir.expanduser() / "workspaces")


def _kubernetes(settings: Settings, instance: str) -> KubernetesBackend:
    try:
        from sessions.backends import kubernetes  # noqa: PLC0415 - only this isolation needs the cluster's client
    except ImportError as error:
        why = f"isolation `kubernetes` needs `pip install 'sandboxed-kernel-gateway[kubernetes]'`: {error}"
        raise InvalidRequest(why, field="isolation") from error
    by_name = settings.kubernetes_runtime_class == "runc"
    return kubernetes.KubernetesBackend(
        kubernetes.KubernetesSettings(
            settings.image,
            instance,
            settings.kubernetes_namespace,
            "" if by_name else settings.kubernetes_runtime_class,
            gvisor=not by_name,
            kubeconfig=str(settings.kubernetes_config or ""),
            pull_policy=settings.kubernetes_image_pull_policy,
            node_selector=settings.kubernetes_node_selector,
            tolerations=tuple(settings.kubernetes_tolerations),
            priority_class=settings.kubernetes_priority_class,
            node_lost=settings.kubernetes_lost_node_seconds,
            gateway_labels=settings.kubernetes_gateway_label,
            gateway=tuple(settings.kubernetes_gateway_address),
            files=settings.files,
            temporary=settings.temporary_bytes,
        )
    )


def _docker_settings(
    settings: Settings, instance: str, egress_secret: str, specs: KernelSpecs, key: Callable[[], bytes]
) -> DockerSettings:
    from sessions.backends.docker import profile  # noqa: PLC0415 - as above
    from sessions.backends.docker.profile import SleepSettings  # noqa: PLC0415 - as above

    allow = tuple(host_and_port(host) for host in settings.egress_allow)
    servers = tuple(settings.egress_dns)
    state = settings.state_dir.expanduser()
    waiting = tuple(spec for spec in specs.all if spec.waits)
    golden = profile.GoldenSettings(state / "checkpoints", settings.golden_disk, settings.limits, waiting)
    return profile.DockerSettings(
        settings.runtime,
        settings.image,
        settings.network,
        instance,
        wheels="" if settings.wheels is None else str(settings.wheels),
        images=tuple(settings.images),
        egress=profile.EgressSettings(settings.egress_image, allow, servers, egress_secret)
        if settings.egress
        else None,
        golden=golden if settings.golden_images == "auto" else None,
        sleep=SleepSettings(state / "asleep", key) if settings.sleep_disk else None,
        files=settings.files,
        kernels_weight=settings.kernels_weight,
        temporary=settings.temporary_bytes,
    )


def examine(settings: Settings, *, tried: bool = True) -> Iterator[Finding]:
    """Check whether this machine has what the settings need. Containers of this check have the instance `doctor`.

    Args:
        settings: settings of the deployment.
        tried: True to also start containers that try the isolation and the golden images.
    """
    yield descriptors.examine(settings.max_connections)
    yield _state_disk(settings.state_dir.expanduser())
    if settings.isolation == "process":
        yield Finding("isolation", None, detail=ProcessBackend.isolation)
        return
    if settings.isolation == "kubernetes":
        yield from _kubernetes(settings, "doctor").examine(tried=tried)
        return
    from sessions.backends import docker  # noqa: PLC0415 - as above

    specs, key = kernelspecs(settings), secrets.token_bytes(32)
    made_of = _docker_settings(settings, "doctor", secrets.token_hex(16), specs, lambda: key)
    yield from docker.examine(made_of, tried=tried)


def _state_disk(directory: Path) -> Finding:
    there = next(each for each in (directory, *directory.parents) if each.is_dir())
    if (trouble := disk_full_error(there)) is not None:
        return Finding("state directory", trouble.message, f"free some space on the disk of {directory}")
    return Finding("state directory", None, detail=f"{room_in(there) // 1024**2} MiB free on the disk of {directory}")


def kernelspecs(settings: Settings) -> KernelSpecs:
    """Return the kernelspecs of all languages, with the modules to preload that the settings name."""
    preload = {} if settings.preload is None else {"python": settings.preload}
    return KernelSpecs(KERNEL_IMAGE / "kernelspecs", preload)
