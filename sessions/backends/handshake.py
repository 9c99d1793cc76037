"""What a launcher is told about its kernel: keys and ports, environment and directories."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import orjson
import zmq

from kernel_image.protocol import PRIVATE_PLACES
from sessions.backends.base import Launch
from sessions.model.connection_info import SIGNATURE, ConnectionInfo


def new_connection_info(
    transport: str, ip: str, *, first_port: int, encryption: bool, signature: str = SIGNATURE
) -> ConnectionInfo:
    """Return connection info with new keys for one kernel, on five ports from `first_port` on."""
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


def private_places(private: str) -> dict[str, str]:
    """Return the variables that name places in a kernel's private directory."""
    return {name: f"{private}/{place}" for name, place in PRIVATE_PLACES.items()}


def kernel_env(launch: Launch, home: str, sandbox: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a kernel: an allow-list with its sandbox's variables, never the gateway's own."""
    threads = str(max(1, round(launch.limits.cpus)))
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # A kernel sees all processors of the host, but may use only `cpus` of them.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        **sandbox,
        **launch.kernelspec.env,
        **launch.env,
    }


def handshake(
    launch: Launch,
    info: ConnectionInfo | None,
    *,
    python: str,
    image: str,
    workspace: str,
    private: str,
    env: Mapping[str, str],
) -> bytes:
    """Return the launcher's input on stdin, because keys must not be in arguments, environment or labels.

    Args:
        launch: what to start.
        info: connection of the kernel; None: the kernel imports its modules and waits for a second handshake.
        python: path of the interpreter.
        image: path of the folder `kernel_image`.
        workspace: path of the workspace, which is the home directory of all processes.
        private: path of the kernel's private directory.
        env: variables of every process in the sandbox.
    """
    connection_file = f"{private}/.connection.json"
    places = {"python": python, "image": image, "connection_file": "-" if info is None else connection_file}
    return (
        orjson.dumps(
            {
                "argv": [part.format(**places) for part in launch.kernelspec.argv],
                "connection": None if info is None else info.file(),
                "connection_file": connection_file,
                "workspace": workspace,
                "home": private,  # its name in earlier images, where it was the home directory
                "cwd": launch.cwd,
                "env": kernel_env(launch, workspace, env),
                # What follows is for kernels that wait: one that was restored has the limits of another sandbox.
                "preload": launch.kernelspec.preload,
                "limits": {"RLIMIT_NPROC": launch.limits.processes, "RLIMIT_FSIZE": launch.limits.disk},
            }
        )
        + b"\n"
    )
