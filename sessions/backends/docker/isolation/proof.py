"""The proof that the runtime and the network isolate kernels. Two containers run `kernel_image/probe.py`.

The proof tests behaviour, not configuration: one container listens, and the other one tries to reach it and the host.
As a positive control, the host must reach both the listener and its own port. Otherwise a failed connection would prove
nothing.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing
from typing import Any, NamedTuple

import docker
from docker.errors import APIError, NotFound
from docker.types import LogConfig

from sessions.backends.docker.engine.breaker import log_refusal, short_cause
from sessions.backends.docker.engine.cgroup import SLICE
from sessions.backends.docker.profile import FIRST_PORT, IMAGE_DIR, PYTHON, UID, DockerSettings
from sessions.backends.docker.requirements import kernels_group
from sessions.model.errors import NotInitialized
from sessions.model.kernelspecs import Inventory

#: label of the probes' containers; kernels do not have it
PROBE_LABEL = "kernel-gateway.probe"
#: seconds from the start of a probe to its answer
TIMEOUT = 30.0
#: attempts of the positive control to open a connection
ATTEMPTS = 3


class Proven(NamedTuple):
    """What the probes have found."""

    #: whether the runtime is gVisor
    gvisor: bool
    inventory: Inventory


def prove(
    api: docker.APIClient,
    settings: DockerSettings,
    host_address: str,
    proxy: tuple[str, int] | None = None,
    *,
    proxied: bool = False,
) -> Proven:
    """Run the probes, and check what they could reach.

    Args:
        api: client of the engine.
        settings: settings of the deployment.
        host_address: the host's address on the kernels' network.
        proxy: address and port of the egress proxy. None means that there is no proxy.
        proxied: whether kernels of this network must reach the proxy. False means that they must not.

    Raises:
        NotInitialized: when a container could not be run, or reached the host or another container.
    """
    probes: list[str] = []
    group = kernels_group(api)
    try:
        with closing(socket.create_server(("0.0.0.0", 0))) as host:  # noqa: S104 - like any service of the host
            target = (host_address, host.getsockname()[1])
            probes.append(_start(api, settings, group, listen=FIRST_PORT, targets=[]))
            seen = _answer(api, probes[0])
            peer = (_address(api, probes[0], settings.network), FIRST_PORT)
            _control(peer, "a kernel")
            _control(target, "its own address on the kernels' network")
            probes.append(_start(api, settings, group, listen=None, targets=[target, peer, *filter(None, [proxy])]))
            reached = _answer(api, probes[1])["reached"]
    except APIError as error:
        log_refusal("run a container of the proof", error)
        raise NotInitialized(_why(settings, error)) from error
    finally:
        for probe in probes:
            _remove(api, probe)
    if list(target) in reached:
        raise NotInitialized("a kernel reaches the host: the firewall rules of the kernels' network are not in effect")
    if list(peer) in reached:
        raise NotInitialized("a kernel reaches another kernel: the network does not keep its containers apart")
    if proxy is not None and (list(proxy) in reached) is not proxied:
        raise NotInitialized(
            "a kernel with the network `allowlist` does not reach the egress proxy"
            if proxied
            else "a kernel without a network reaches the egress proxy"
        )
    gvisor = bool(seen["gvisor"])
    if not gvisor and settings.runtime != "runc":
        raise NotInitialized(
            f"runtime {settings.runtime!r} is not gVisor; the only allowed runtime without gVisor is `runc`"
        )
    return Proven(gvisor, Inventory(seen["python"], seen["packages"]))


def clear(api: docker.APIClient, settings: DockerSettings) -> None:
    """Remove the probes of aborted proofs. Must not be called while a proof runs."""
    labels = [PROBE_LABEL, *(f"{name}={value}" for name, value in settings.labels.items())]
    for container in api.containers(all=True, filters={"label": labels}):
        _remove(api, container["Id"])


def _why(settings: DockerSettings, error: APIError) -> str:
    cause = short_cause(error)
    if "cgroup" in str(error.explanation):
        return (
            f"the engine runs no container in the control group {SLICE!r}, where all kernels are: {cause}; "
            "let it make that group: run it as root, with control groups that it may write"
        )
    return f"runtime {settings.runtime!r} cannot run a container: {cause}"


def _start(api: docker.APIClient, settings: DockerSettings, group: str, **request: Any) -> str:
    container = api.create_container(
        settings.image,
        [PYTHON, "-I", "-S", f"{IMAGE_DIR}/probe.py", json.dumps(request)],
        user=f"{UID}:{UID}",
        labels=settings.labels | {PROBE_LABEL: "1"},
        use_config_proxy=False,
        host_config=api.create_host_config(
            runtime=settings.runtime,
            network_mode=settings.network,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            mem_limit="256m",
            cgroup_parent=group,
            log_config=LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
        ),
    )
    try:
        api.start(container["Id"])
    except APIError:
        _remove(api, container["Id"])
        raise
    return str(container["Id"])


def _answer(api: docker.APIClient, container: str) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT
    running = True
    while running and time.monotonic() < deadline:
        # The state is read before the log. So if the container has ended, its log is complete.
        running = api.inspect_container(container)["State"]["Running"]
        line, found, _ = api.logs(container, stdout=True, stderr=False).partition(b"\n")
        if found:
            return dict(json.loads(line))
        time.sleep(0.05)
    said = api.logs(container, stdout=False, stderr=True)[-300:].decode(errors="replace").strip()
    raise NotInitialized(f"a container of the kernels' image gives no answer: {said or 'it said nothing'}")


def _address(api: docker.APIClient, container: str, network: str) -> str:
    return str(api.inspect_container(container)["NetworkSettings"]["Networks"][network]["IPAddress"])


def _control(target: tuple[str, int], what: str) -> None:
    for attempt in range(ATTEMPTS):
        try:
            socket.create_connection(target, 5).close()
        except OSError as error:
            if attempt + 1 == ATTEMPTS:
                raise NotInitialized(f"the gateway does not reach {what} ({target[0]}): {error}") from error
            time.sleep(0.5)  # a new interface may not be reachable at once
        else:
            return


def _remove(api: docker.APIClient, container: str) -> None:
    try:
        api.remove_container(container, force=True)
    except NotFound:
        return
