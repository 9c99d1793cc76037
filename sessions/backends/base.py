"""What the rest of `sessions` needs from a place where kernels can run. Nothing else of it is known there.

To add a backend: write a module beside this one, add it to the table in `kernel_gateway/app.py`, and run the
contract suite in `tests/sessions/backends/test_contract.py` over it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson
import zmq

import kernel_image
from sessions.kernelspecs import KernelSpec
from sessions.models import SIGNATURE, ConnectionInfo, KernelExit, Limits

#: the programs that run beside user code; in a container they lie elsewhere
KERNEL_IMAGE = Path(kernel_image.__file__).parent


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel to be started."""

    kernelspec: KernelSpec
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: the workspace it shares with the session's earlier kernels; None before the first has one
    workspace: str | None = None
    #: where in the workspace it starts; an absolute path: in `/tmp`
    cwd: str = ""
    #: others use the workspace too, and have its `/tmp` in common
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a backend needs, as it was found."""

    name: str
    #: what is wrong; None when nothing is
    problem: str | None
    #: how to mend it
    mend: str = ""
    #: what was seen
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is as it must be."""
        return self.problem is None


def nobody_cares() -> None:
    """The listener of what has none yet."""


class KernelHandle(Protocol):
    """One kernel that was started."""

    id: str
    connection_info: ConnectionInfo
    #: called when memory ran out in there, of the kernel or of something it has started; either may live on
    on_out_of_memory: Callable[[], None]

    async def wait(self) -> KernelExit:
        """Wait until the kernel is gone, and with it all that belonged to it but the workspace."""

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel, and return when it is there; nothing happens when the kernel is gone."""

    def memory(self) -> int | None:
        """Bytes that all in there use now; None: it is gone, or nobody can tell. It must cost next to nothing."""

    async def kill(self) -> None:
        """End the kernel now and wait until it is gone. Idempotent.

        Where an engine does not answer, the wait has an end: nobody uses the kernel any more, and it goes later.
        """

    def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools beside the kernel, as its user, in its workspace.

        Args:
            name: a module of `kernel_image`.
            argument: its one argument; not secret.
            stdin: what it reads.

        Yields:
            what it writes to its standard output. Closing the generator ends the tool.

        Raises:
            ConnectionFailed: it could not be run.
        """


class Backend(Protocol):
    """A place where kernels run."""

    #: how it is called in settings
    name: str
    #: what separates kernels here, in the words that are shown to the operator
    isolation: str
    #: called when what `prepare` has proven may hold no more, or may hold again
    on_doubt: Callable[[], None]

    async def prepare(self) -> None:
        """Put up what kernels need, and prove that it holds. Repeated from time to time.

        Raises:
            NotInitialized: something is missing or does not hold; no kernel may be started.
            BackendUnavailable: the engine does not answer.
        """

    async def adopt(self, kernels: Mapping[str, ConnectionInfo]) -> Mapping[str, KernelHandle]:
        """Take over what an earlier gateway of this installation has started, and remove what else it has left.

        Called when `prepare` has succeeded, before anything is started; again only if it has failed.

        Args:
            kernels: where they listen, by the id of their handle.

        Returns:
            the handles of those that are left; one may have ended.

        Raises:
            BackendUnavailable: the engine does not answer.
        """

    async def start(self, launch: Launch) -> KernelHandle:
        """Start a kernel; it need not listen yet when this returns.

        Raises:
            StartFailed: it could not be started.
            BackendUnavailable: the engine does not answer.
        """

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a workspace that no kernel uses any more; nothing happens when there is none.

        When that cannot be done now it is done later, if need be by `adopt` after the next start: an engine that is
        away is no failure here, and keeps nobody waiting for long.
        """

    async def release(self) -> None:
        """Free what `prepare` took, and leave the kernels to the next gateway."""

    async def close(self) -> None:
        """End all kernels that are left and free what `prepare` took."""


def new_connection_info(
    transport: str, ip: str, *, first_port: int, encryption: bool, signature: str = SIGNATURE
) -> ConnectionInfo:
    """Fresh keys for one kernel, on five ports from `first_port` on."""
    public, secret = zmq.curve_keypair() if encryption else (None, None)
    return ConnectionInfo(
        transport,
        ip,
        shell_port=first_port,
        iopub_port=first_port + 1,
        stdin_port=first_port + 2,
        control_port=first_port + 3,
        hb_port=first_port + 4,
        key=secrets.token_hex(32).encode(),
        signature=signature,
        curve_publickey=public,
        curve_secretkey=secret,
    )


def kernel_env(launch: Launch, home: str) -> dict[str, str]:
    """The whole environment of a kernel: an allow-list, never the gateway's own."""
    threads = str(max(1, round(launch.limits.cpus)))
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # In a sandbox all of the host's processors can be seen, but only `cpus` of them used.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        **launch.kernelspec.env,
        **launch.env,
    }


def handshake(launch: Launch, info: ConnectionInfo, *, python: str, image: str, workspace: str, home: str) -> bytes:
    """What the launcher reads from its standard input: keys never stand in arguments, environment or labels."""
    connection_file = f"{home}/.connection.json"
    places = {"python": python, "image": image, "connection_file": connection_file}
    return (
        orjson.dumps(
            {
                "argv": [part.format(**places) for part in launch.kernelspec.argv],
                "connection": info.file(),
                "connection_file": connection_file,
                "workspace": workspace,
                "cwd": launch.cwd,
                "env": kernel_env(launch, home),
            }
        )
        + b"\n"
    )
