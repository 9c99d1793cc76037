"""Calls the runtime to write sandboxes, and makes marks that turn a container's start into a restore.

The engine's own checkpoints need its experimental mode, are copied through containerd, and can be restored only into
the same container. So the gateway calls runsc itself, as root on the engine's machine. A restore is an ordinary start
of a container: the runtime is a wrapper (`runsc.sh`), which restores a container if it finds a mark for it.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import docker

from sessions.backends.docker.profile import DockerSettings

#: directory of the marks. Only root may write to it, so no session can mark a container. The wrapper uses it, too.
MARKS = Path("/run/kernel-gateway/restore")
#: parts of the wrapper's text, by which its features are recognized: it restores marked containers, deletes containers
#: that were killed while held, ends hanging commands, and prevents gVisor from comparing container descriptions
_PARTS = (os.fsencode(MARKS), b"delete --force", b"timeout --signal=KILL", b'[ -L "$mark" ] && "$runsc" flags')
#: directories in which the versions of the engine keep the state of runsc's containers
_STATES = ("/run/docker/runtime-*/*", "/run/containerd/runsc/*")
#: folder of all processes that this process sees
_PROCESSES = Path("/proc")
#: seconds to write an image; measured: 0.2 to 0.7 s for 160 MB
_TAKE_TIMEOUT = 30.0


class CheckpointFailed(Exception):
    """An image was not written or not restored. The exception's text is for the operator."""


class TooLarge(CheckpointFailed):
    """There is no room for an image."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The engine's runtime, called by its path."""

    #: path of the wrapper, and the flags that the engine passes to it
    command: tuple[str, ...]
    version: str

    def take(self, container: str, directory: Path, *, keep: bool = False) -> None:
        """Write an image of a container. Unless `keep` is set, the container then ends. Blocks.

        Args:
            container: full id of the container.
            directory: an empty directory for the image.
            keep: whether the container stays alive, also after a failure. It must be held.

        Raises:
            CheckpointFailed: when the runtime failed or took too long. The directory may contain incomplete files.
        """
        kept = ["-leave-running"] if keep else []
        self._run(container, "checkpoint", *kept, "-compression=none", "-image-path", str(directory))

    def hold(self, container: str) -> None:
        """Stop all processes of a container until `release`. The engine does not know this, and cannot end it. Blocks.

        Raises:
            CheckpointFailed: when the runtime failed or took too long.
        """
        self._run(container, "pause")

    def release(self, container: str) -> None:
        """Let a held container run again. Blocks.

        Raises:
            CheckpointFailed: as in `hold`, or when the container was not held.
        """
        self._run(container, "resume")

    def _run(self, container: str, *arguments: str) -> None:
        _run([*self.command, "--root", _state_of(container), *arguments, container], _TAKE_TIMEOUT)


def find_runtime(api: docker.APIClient, settings: DockerSettings) -> Runtime:
    """Return the runtime, if this process can write and restore images with it.

    Raises:
        CheckpointFailed: when a requirement is missing. The text says how to meet it.
    """
    if settings.runtime == "runc":
        raise CheckpointFailed("the runtime runc has none that the gateway could use")
    if os.geteuid() != 0:
        raise CheckpointFailed("the gateway does not run as root on the engine's machine")
    registered = api.info()["Runtimes"][settings.runtime]
    path = Path(registered.get("path") or "")
    if not path.is_absolute() or not path.is_file():
        raise CheckpointFailed(f"the runtime {path} is not visible here: is the engine on another machine?")
    if not all(part in path.read_bytes() for part in _PARTS):
        raise CheckpointFailed(f"the runtime {path} is not the gateway's wrapper, or an earlier one: {INSTALL}")
    _marks()
    command = (str(path), *registered.get("runtimeArgs", ()))
    return Runtime(command, _run([str(path), "--version"], _TAKE_TIMEOUT).strip())


#: instruction to install the wrapper, for messages
INSTALL = f"install {Path(__file__).parent / 'runsc.sh'} as the runtime's path in /etc/docker/daemon.json"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark, valid inside the `with` block of `marked`."""

    #: descriptor of the symbolic link itself; it can still be examined after the link was removed
    link: int

    @property
    def used_at(self) -> float | None:
        """Time at which the runtime has used and removed the mark, in seconds since 1970. None if it has not."""
        found = os.fstat(self.link)
        return None if found.st_nlink else found.st_ctime


@contextmanager
def marked(container: str, image: Path) -> Iterator[Mark]:
    """Mark a container, so that its start inside the `with` block restores an image.

    Args:
        container: full id of the container, which has not been started.
        image: directory of the image.

    Raises:
        CheckpointFailed: when the mark cannot be made.
    """
    path = _marks() / container
    try:
        path.symlink_to(image)
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointFailed(f"no mark in {MARKS}: {error.strerror}") from error
    try:
        yield Mark(link)
    finally:
        path.unlink(missing_ok=True)
        os.close(link)


def clear_marks(api: docker.APIClient) -> None:
    """Remove the marks of containers that no longer exist. Killed gateways may have left them."""
    marks = list(_marks().iterdir())  # listed before the containers, because each container is older than its mark
    there = {container["Id"] for container in api.containers(all=True)}
    for mark in marks:
        if mark.name not in there:
            mark.unlink(missing_ok=True)


def _marks() -> Path:
    """Return the directory of the marks. It is made if absent.

    Raises:
        CheckpointFailed: when the directory cannot be made, or other users may enter it.
    """
    try:
        MARKS.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = MARKS.lstat()
    except OSError as error:
        raise CheckpointFailed(f"{MARKS} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o077:
        raise CheckpointFailed(f"{MARKS} must be a directory of root that nobody else may enter")
    return MARKS


def _state_of(container: str) -> str:
    """Return the directory with runsc's state of a running container. Its place depends on the engine (`exec-root`)."""
    for pattern in _STATES:
        for directory in Path("/").glob(pattern.lstrip("/")):
            if any(directory.glob(f"{container}_*")):
                return str(directory)
    for words in _command_lines():
        if container in words and (root := _option(words, "root")):
            return root
    raise CheckpointFailed(
        "the state of the runtime's containers was not found, neither below /run/docker nor in the command line of the "
        "sandbox: does the gateway see the processes of the engine's machine?"
    )


def _command_lines() -> Iterator[list[str]]:
    """Yield the words of the command line of each process."""
    for file in _PROCESSES.glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            yield file.read_text(errors="replace").rstrip("\0").split("\0")


def _option(words: list[str], name: str) -> str:
    """Return the value of an option in a command line of runsc, or an empty text if it does not have the option."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and option == name:
            return value if equals else following
    return ""


def _run(command: list[str], timeout: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the engine's own runtime
            command, check=False, capture_output=True, text=True, timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckpointFailed(f"{command[0]} could not be run or took too long: {error}") from error
    if done.returncode:
        raise CheckpointFailed(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[:300]}")
    return done.stdout
