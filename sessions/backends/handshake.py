"""Builds the handshake, which tells a launcher the keys, ports, environment and directories of its kernel."""

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
    """Return connection info with new keys for one kernel. It uses five ports, beginning with `first_port`."""
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
    """Return the variables that tell programs where their files are in a kernel's private directory."""
    return {name: f"{private}/{place}" for name, place in PRIVATE_PLACES.items()}


def kernel_env(launch: Launch, home: str, sandbox: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a kernel. It contains nothing of the gateway's own environment."""
    threads = str(max(1, round(launch.limits.cpus)))
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # A kernel sees all processors of the host, but may use only `cpus` of them.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads),
        **sandbox,
        **launch.kernelspec.env,
        **launch.variables,
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
    """Return the launcher's standard input. Keys are sent this way, and never in arguments, environment or labels.

    Args:
        launch: order to start the kernel.
        info: connection of the kernel. None means that the kernel imports its modules and waits for another handshake.
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
                "home": private,  # launchers of earlier images expect this name; there it was the home directory
                "cwd": launch.cwd,
                "env": kernel_env(launch, workspace, env),
                # The next fields are for kernels that wait. A restored kernel has the limits of its golden image.
                "preload": launch.kernelspec.preload,
                "limits": {"RLIMIT_NPROC": launch.limits.processes, "RLIMIT_FSIZE": launch.limits.disk},
            }
        )
        + b"\n"
    )
