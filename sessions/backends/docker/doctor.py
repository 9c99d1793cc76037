"""Checks all requirements of this backend, one after the other, and reports how to fix each problem."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import zmq
from docker.errors import APIError

from sessions.backends.abilities import Ability, Finding
from sessions.backends.docker.checkpoint import trials
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.breaker import explained
from sessions.backends.docker.engine.engine import CONNECTION_ERRORS, Engine, connect
from sessions.backends.docker.engine.timer_slack import may_be_set
from sessions.backends.docker.engine.versions import runtime_path, told_version
from sessions.backends.docker.golden.workshop import Shape, Workshop
from sessions.backends.docker.isolation import firewall, network, proof
from sessions.backends.docker.isolation.egress.proxy import require_image as require_proxy_image
from sessions.backends.docker.profile import UID, WORKSPACE, DockerSettings, volume_names
from sessions.backends.docker.requirements import kernels_group, require_image, require_runtime, require_wheels
from sessions.backends.docker.sleep import sleep_ability
from sessions.model.errors import SessionError

#: list of the mounted file systems, and the types of file systems that are in memory
MOUNTS, IN_MEMORY = Path("/proc/self/mounts"), {"tmpfs", "ramfs"}
#: the date in a version of gVisor, in its own form or in Debian's, and the age from which `doctor` warns
_RELEASE = re.compile(r"(?:release-|\b0\.0~)(20[0-9]{2})([0-9]{2})([0-9]{2})")
_OLD = dt.timedelta(days=365)
_CURRENT = "Current releases: https://gvisor.dev/docs/user_guide/install and https://github.com/google/gvisor/releases"
IMAGE_FIX = "make image; without a checkout, run the `build.sh` of the installed package `kernel_image`"
#: free bytes on the disk below which the engine may soon fail
DISK_MIN = 2 * 1024**3


def examine(settings: DockerSettings, *, tried: bool = True) -> Iterator[Finding]:
    """Check all requirements. A check whose prerequisite is missing is skipped.

    Args:
        settings: settings of the deployment.
        tried: whether the isolation and the golden images are tried, too. False means that the caller does that.
    """
    yield _curve()
    try:
        api = connect()
    except SessionError as error:
        fix = "install Docker (Debian: apt-get install docker.io) and start it; check that this user may use it"
        yield Finding("Docker engine", error.message, fix)
        return
    with closing(api):
        found = []
        for finding in _requirements(api, settings):
            found.append(finding)
            yield finding
        if tried and all(finding.ok for finding in found):
            yield from _abilities(api, settings)


def _requirements(api: docker.APIClient, settings: DockerSettings) -> Iterator[Finding]:
    yield Finding("Docker engine", None, detail=f"API {api.api_version}")
    yield _disk(str(api.info()["DockerRootDir"]))
    yield _step(
        "runtime", lambda: require_runtime(api, settings), "see gVisor's installation guide; Debian: `make engine`"
    )
    yield from _gvisor(api, settings)
    image = _step("image", lambda: require_image(api, settings.image), IMAGE_FIX)
    yield image
    for name in settings.images:
        yield _step(f"image {name}", partial(require_image, api, name), "build or pull it")
    yield _step("wheels", lambda: require_wheels(api, settings), "make the directory, readable for all users")
    yield _step(
        "network", lambda: network.ensure_network(api, settings.network), "remove it; the gateway makes it anew"
    )
    yield _step("firewall", lambda: _firewall(settings), "run the gateway as root, or as root: " + _commands(settings))
    yield _idle_slowdown()
    if image.ok:  # a container of it attaches the disks
        yield _step(
            "files", lambda: _files(settings), "load the kernel module `loop`, or keep files in memory: --files memory"
        )
    if settings.egress is not None:
        egress = settings.egress
        yield _step("egress proxy's image", lambda: require_proxy_image(api, egress), "make egress-image")


def _abilities(api: docker.APIClient, settings: DockerSettings) -> Iterator[Finding]:
    """Try the isolation and the abilities of kernels. All requirements must be met."""
    fix = "the rules must be in effect: as root " + _commands(settings)
    address = network.ensure_network(api, settings.network)
    yield _step("isolation test", lambda: _proven(proof.prove(api, settings, address).gvisor), fix)
    golden, proven = _golden(settings)
    yield Finding.of("golden images", golden)
    yield Finding.of("sleep", _sleep(settings, proven))
    if (written := settings.golden or settings.sleep) is not None:
        yield Finding("disk of memory images", None, detail=_place(written.directory, MOUNTS.read_text()))


def _step(name: str, look: Callable[[], str], fix: str) -> Finding:
    try:
        return Finding(name, None, detail=look())
    except SessionError as error:
        cause = error.__cause__
        return Finding(name, error.message + (f": {explained(cause)}" if isinstance(cause, APIError) else ""), fix)
    except CONNECTION_ERRORS as error:
        return Finding(name, f"the Docker engine refused or did not answer: {str(error)[:200]}", fix)


def _gvisor(api: docker.APIClient, settings: DockerSettings) -> Iterator[Finding]:
    """Report the age of the runtime, if it is on this machine. An old one, with known holes, is only a warning."""
    if settings.runtime == "runc" or (path := runtime_path(api, settings.runtime)) is None:
        return
    try:
        said = told_version(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("gVisor's age", None, detail=f"unknown: {path} did not tell its version: {error}")
        return
    yield Finding("gVisor's age", None, detail=age_of_gvisor(said, dt.datetime.now(dt.UTC).date()))


def age_of_gvisor(said: str, today: dt.date) -> str:
    """Return a text with the date of a gVisor's release, and a warning if it is more than a year old.

    Args:
        said: output of `runsc --version`. Its version contains the date, but distributions may leave it out.
        today: the present day.
    """
    found = _RELEASE.search(said)
    try:
        released = dt.date(*map(int, found.groups())) if found else None
    except ValueError:
        released = None
    if released is None:
        return f"unknown, because its version names no release: ask the package manager for its date. {_CURRENT}"
    if today - released > _OLD:
        return f"WARNING: of {released}, older than a year, with holes that are known since. {_CURRENT}"
    return f"of {released}"


def _curve() -> Finding:
    if zmq.has("curve"):
        return Finding("CurveZMQ", None, detail=f"libzmq {zmq.zmq_version()}")
    return Finding("CurveZMQ", "this libzmq cannot encrypt", "pip install --force-reinstall pyzmq (its wheels can)")


def _disk(directory: str) -> Finding:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # a remote engine, or a directory that this user may not read
        return Finding("disk", None, detail="cannot be seen from here")
    if free < DISK_MIN:
        return Finding("disk", f"{free // 1024**2} MiB free", f"free some space on the disk of {directory}")
    return Finding("disk", None, detail=f"{free // 1024**3} GiB free")


def _firewall(settings: DockerSettings) -> str:
    found = firewall.ensure_rules(network.bridge_name(settings.network))
    return found.value + ("; they are tested below" if found is firewall.Rules.HIDDEN else "")


def _idle_slowdown() -> Finding:
    if may_be_set():
        return Finding("idle kernels", None, detail="rest, and use little processor time")
    newer = "gVisor from release-20260622 on needs no rest"
    return Finding("idle kernels", None, detail=f"rest only if the gateway runs as root, outside a container; {newer}")


@contextmanager
def _disks(settings: DockerSettings) -> Iterator[tuple[Engine, Disks]]:
    engine = Engine()
    with closing(engine.api) as api:
        engine.use_kernels_group(kernels_group(api))
        disks = Disks(engine, settings)
        try:
            yield engine, disks
        finally:
            disks.delete_all()


def _files(settings: DockerSettings) -> str:
    with _disks(settings) as (_, disks):
        return disks.prove()


def _golden(settings: DockerSettings) -> tuple[Ability, Ability]:
    """Make a golden image and restore a kernel from it. Kernels can start without one, so this is no requirement.

    Returns:
        whether kernels can be restored, and whether this process may write and restore sessions.
    """
    if settings.golden is None or not settings.golden.kernelspecs:
        off = Ability(on=False, detail="`golden_images` is off")
        return off, off
    parent = settings.golden.directory.parent
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent) as directory:
        mine = replace(settings.golden, directory=Path(directory))
        shape = Shape.of(mine.kernelspecs[0])
        with _disks(settings) as (engine, disks):
            workshop = Workshop(engine, disks, settings, mine, SleepImages(engine, disks, settings))
            try:
                _, image = workshop.golden(shape)
                size = sum(size for _, size in image.sizes) // 1024**2
                return Ability(on=True, detail=f"taken and restored, {size} MiB"), workshop.sleeps(shape, image)
            except (CheckpointFailed, SessionError, *CONNECTION_ERRORS) as error:
                off = Ability(on=False, detail=str(error))
                return off, off


def _sleep(settings: DockerSettings, proven: Ability) -> Ability:
    """Decide as the gateway does whether kernels can sleep, and write a file as a trial of a sleeping kernel does."""
    ability = sleep_ability(settings, proven)
    trouble = _trial(settings) if ability.on else ""
    return Ability(on=False, detail=trouble) if trouble else ability


def _trial(settings: DockerSettings) -> str:
    """Return why trials of sleeping kernels would not work. Empty means that they work."""
    workspace = uuid.uuid4().hex
    try:
        with _disks(settings) as (engine, _), ExitStack() as ending:
            name = engine.api.create_volume(volume_names(workspace)[0], labels=settings.labels)["Name"]
            ending.callback(engine.api.remove_volume, name)
            trial = trials.prepare(engine, settings, workspace)
            ending.callback(trials.clear, engine, trial)
            host = engine.api.create_host_config(
                runtime=settings.runtime, mounts=list(trial.volumes), network_mode="none"
            )
            write = ["touch", f"{WORKSPACE}/written"]
            made = engine.api.create_container(
                settings.image, write, user=f"{UID}:{UID}", labels=settings.labels, host_config=host
            )
            ending.callback(engine.api.remove_container, made, force=True)
            engine.api.start(made)
            engine.api.wait(made)
            in_memory = any(trial.changes.glob("upper*/written"))
            return "" if in_memory else "what a trial writes is not in the memory of this machine"
    except (CheckpointFailed, SessionError, *CONNECTION_ERRORS) as error:
        return str(error)


def _place(directory: Path, mounts: str) -> str:
    """Return a text about the file system to which golden images and sleeping kernels are written.

    Args:
        directory: directory of the images, which need not exist yet.
        mounts: content of `/proc/self/mounts`. A later mount hides an earlier one at the same path.
    """
    kinds = {Path(line.split()[1]): line.split()[2] for line in mounts.splitlines()}
    real = directory.resolve()
    place = next(parent for parent in (real, *real.parents) if parent in kinds)
    if kinds[place] not in IN_MEMORY:
        return f"on {kinds[place]}"
    return (
        f"{place} is in memory ({kinds[place]}): what is written counts as memory of its kernel, and the "
        "kernel ends if that is above its limit; set state_dir to a directory on a disk"
    )


def _proven(gvisor: bool) -> str:  # noqa: FBT001 - the only argument
    return "gVisor; kernels reach neither the host nor one another" if gvisor else "no gVisor; network closed"


def _commands(settings: DockerSettings) -> str:
    return firewall.commands(network.bridge_name(settings.network))
