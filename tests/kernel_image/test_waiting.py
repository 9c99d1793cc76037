"""A kernel that waited for its keys, without the sandbox from whose checkpoint it is continued."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from sessions.backends.base import KERNEL_IMAGE


def tell(launcher: subprocess.Popen[bytes], **handshake: Any) -> Any:
    """Send a handshake, and return the kernel's answer."""
    told: IO[bytes] | None
    told, heard = launcher.stdin, launcher.stdout
    assert told is not None
    assert heard is not None
    told.write(json.dumps(handshake).encode() + b"\n")
    told.flush()
    return json.loads(heard.readline())


def test_it_prints_nothing_of_its_own_into_a_cell_that_forks(tmp_path: Path) -> None:
    _, connection = write_connection_file(str(tmp_path / "ports.json"), key=b"a key")
    argv = [sys.executable, str(KERNEL_IMAGE / "python_kernel/__main__.py"), "-f", "-"]
    directory = {"workspace": str(tmp_path), "home": str(tmp_path), "cwd": ""}
    own = {"connection": connection | {"key": "a key"}, "connection_file": str(tmp_path / "connection.json")}
    client = BlockingKernelClient()
    client.load_connection_info(connection)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "launcher.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        assert tell(launcher, connection=None, argv=argv, env={}, preload=[], **directory) == {}
        assert tell(launcher, **own, limits={}, env={}, **directory) == {}
        client.start_channels()
        client.wait_for_ready(timeout=60)
        said: list[Any] = []
        cell = "import multiprocessing\nwith multiprocessing.Manager() as manager: print(manager.list([1]))"
        client.execute_interactive(cell, timeout=60, output_hook=said.append)
        client.stop_channels()
        launcher.terminate()
    assert [message["content"]["text"] for message in said if message["msg_type"] == "stream"] == ["[1]\n"]
