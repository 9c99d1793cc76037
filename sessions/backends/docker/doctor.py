"""Looks at everything this backend needs, one thing after the other, and says how to mend what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import zmq

from sessions.backends.base import Finding
from sessions.backends.docker import firewall, network, proof
from sessions.backends.docker.engine import connect
from sessions.backends.docker.needs import require_image, require_runtime
from sessions.backends.docker.profile import DockerSettings
from sessions.errors import SessionError

#: bytes below which the engine is about to be in trouble
DISK_MIN = 2 * 1024**3


def examine(settings: DockerSettings) -> Iterator[Finding]:
    """Look at it all; what needs something that is missing is not looked at."""
    yield _curve()
    try:
        api = connect()
    except SessionError as error:
        mend = "install Docker (Debian: apt-get install docker.io) and start it; check that this user may use it"
        yield Finding("Docker engine", error.message, mend)
        return
    yield Finding("Docker engine", None, detail=f"API {api.api_version}")
    yield _disk(str(api.info()["DockerRootDir"]))
    found = [
        _step(
            "runtime", lambda: require_runtime(api, settings), "see gVisor's installation guide; Debian: `make engine`"
        ),
        _step("image", lambda: require_image(api, settings), "make image"),
        _step("network", lambda: network.ensure_network(api, settings.network), "remove it; the gateway makes it anew"),
        _step("firewall", lambda: _firewall(settings), "run the gateway as root, or as root: " + _commands(settings)),
    ]
    yield from found
    if all(finding.ok for finding in found):
        mend = "the rules must be in effect: as root " + _commands(settings)
        address = network.ensure_network(api, settings.network)
        yield _step("isolation, tried out", lambda: _proven(proof.prove(api, settings, address)), mend)


def _step(name: str, look: Callable[[], str], mend: str) -> Finding:
    try:
        return Finding(name, None, detail=look())
    except SessionError as error:
        return Finding(name, error.message, mend)


def _curve() -> Finding:
    if zmq.has("curve"):
        return Finding("CurveZMQ", None, detail=f"libzmq {zmq.zmq_version()}")
    return Finding("CurveZMQ", "this libzmq cannot encrypt", "pip install --force-reinstall pyzmq (its wheels can)")


def _disk(directory: str) -> Finding:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # an engine elsewhere, or a directory that this user may not see
        return Finding("disk", None, detail="cannot be seen from here")
    if free < DISK_MIN:
        return Finding("disk", f"{free // 1024**2} MiB free", f"free some space on the disk of {directory}")
    return Finding("disk", None, detail=f"{free // 1024**3} GiB free")


def _firewall(settings: DockerSettings) -> str:
    changed = firewall.put_up(network.bridge_name(settings.network))
    if changed is None:
        return "this user may not look; it is tried out below"
    return "rules were missing and are set now" if changed else "rules are set"


def _proven(gvisor: bool) -> str:  # noqa: FBT001 - one fact, one word for it
    return "gVisor; kernels reach neither the host nor one another" if gvisor else "no gVisor; network closed"


def _commands(settings: DockerSettings) -> str:
    return firewall.commands(network.bridge_name(settings.network))
