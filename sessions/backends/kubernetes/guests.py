"""Containers that share a workspace are users of one Pod, because Pods have no common volume.

The Pod itself only holds the workspace, and ends with its last user. A kernel is a process in it, with a launcher of
its own, which runs on when a connection to the API breaks, or the gateway ends. All share the Pod's limits.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sessions.backends.base import HandleListener, Launch
from sessions.backends.handshake import handshake, new_connection_info
from sessions.backends.kubernetes.cluster import Cluster
from sessions.backends.kubernetes.handle import SIGNAL_DELAY, PodHandle
from sessions.backends.kubernetes.profile import (
    EVERYWHERE,
    FIRST_PORT,
    IMAGE_DIR,
    PORTS,
    PRIVATE,
    PYTHON,
    USERS_MAX,
    WORKSPACE,
    bounded,
    environment,
)
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed, QuotaExceeded, SessionError, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import SIGNALLED, ExitReason, KernelExit

#: seconds before a broken connection to the process that waits for a kernel's end is opened again
AGAIN = 1.0
#: seconds for a kernel to end after SIGTERM
END = 3.0
#: separates the Pod's name, the launcher's process id and the kernel's own word in the id of a user
SEPARATOR = "/"
#: Starts the next program in the background, with the handshake, and prints the launcher's process id.
_START = """
import os, subprocess, sys
place, program = sys.argv[1:]
os.mkdir(place, 0o700)
os.mkfifo(place + "/alive", 0o600)
alive = os.open(place + "/alive", os.O_RDWR)
started = subprocess.Popen([sys.executable, "-I", "-S", "-c", program, place], stdin=subprocess.PIPE,
    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[alive], start_new_session=True)
started.stdin.write(sys.stdin.buffer.readline())
started.stdin.close()
sys.stdout.write(started.stdout.readline().decode())
"""
#: Runs a launcher, and leaves its exit code in a file. It has the pipe `alive` open until then.
_LAUNCH = f"""
import os, subprocess, sys
launcher = subprocess.Popen([sys.executable, "-I", "-S", "{IMAGE_DIR}/launcher.py"], stdout=subprocess.DEVNULL)
print(launcher.pid, flush=True)
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
os.dup2(null, 1)
code = launcher.wait()
with open(sys.argv[1] + "/end", "w") as end:
    end.write(str(code if code >= 0 else {SIGNALLED} - code))
"""
#: Waits for the end of a launcher, or of the connection, and prints the exit code.
_WAIT = f"""
import os, select, sys
place, launcher = sys.argv[1:]
alive = os.open(place + "/alive", os.O_RDONLY | os.O_NONBLOCK)
if os.path.exists("/proc/" + launcher):
    if alive not in select.select([0, alive], [], [])[0]:
        sys.exit()
print(open(place + "/end").read() if os.path.exists(place + "/end") else {SIGNALLED + 9})
"""


class Guest:
    """A user of a Pod: one kernel, or without one whoever needs its files and tools."""

    def __init__(self, pod: PodHandle, cluster: Cluster, own: str, info: ConnectionInfo) -> None:
        """Begin with a Pod that runs.

        Args:
            pod: the Pod.
            cluster: calls the API.
            own: part of the id that is this user's own: the launcher's process id, if there is one, and a word.
            info: connection info of the kernel.
        """
        self.id = f"{pod.id}{SEPARATOR}{own}"
        self.connection_info = replace(info, ip=pod.connection_info.ip)
        self.preloaded: Collection[str] = ()
        self.pod = pod
        self.used_at = pod.used_at
        self._launcher, _, word = own.rpartition(SEPARATOR)
        self._place = f"{PRIVATE}/{word}"
        self._cluster = cluster
        self._killed = False
        self._listener: HandleListener | None = None
        self.gone: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
        pod.gone.add_done_callback(self._pod_gone)
        if self._launcher:
            spawn(self._watch(), f"watch of {self.id}")

    def _pod_gone(self, ended: asyncio.Future[KernelExit]) -> None:
        if ended.result().reason is ExitReason.OOM and self._listener is not None:
            self._listener.on_out_of_memory(self)
        self._end(ended.result())

    def _end(self, how: KernelExit) -> None:
        if not self.gone.done():
            self._listener = None
            self.gone.set_result(KernelExit(ExitReason.KILLED) if self._killed else how)

    async def _watch(self) -> None:
        """Wait for the launcher's end, also when the connection breaks meanwhile."""
        wait = [PYTHON, "-I", "-S", "-c", _WAIT, self._place, self._launcher]
        while not self.gone.done():
            with suppress(SessionError):
                async with self._cluster.run(self.pod.id, wait) as stream:
                    reading: asyncio.Task[Any] = spawn(stream.read(within=None), "end of a kernel")
                    await asyncio.wait({reading, self.gone}, return_when=asyncio.FIRST_COMPLETED)
                    if self.gone.done():
                        reading.cancel()
                    elif code := reading.result():
                        self._end(KernelExit(ExitReason.EXITED, int(code)))
            await asyncio.wait({self.gone}, timeout=AGAIN)

    def attach(self, listener: HandleListener, _tenant: str) -> None:
        """Set the present user of the kernel."""
        self._listener = listener

    def make_responsive(self) -> None:
        """Record the time of this use."""
        self.pod.make_responsive()
        self.used_at = self.pod.used_at

    async def wait(self) -> KernelExit:
        """Wait until the kernel, or the whole Pod, has ended."""
        return await asyncio.shield(self.gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the launcher, which passes it on to the kernel."""
        self.make_responsive()
        await self._signal("INT")
        await asyncio.sleep(SIGNAL_DELAY)

    async def _signal(self, name: str) -> None:
        if self._launcher:
            with suppress(SessionError):  # if this fails, the caller kills the kernel later
                async with self._cluster.run(self.pod.id, ["sh", "-c", f"kill -{name} {self._launcher}"]) as signal:
                    await signal.read()

    def memory(self) -> None:
        """Return None: this version does not measure Pods."""

    def processor_seconds(self) -> None:
        """Return None: this version does not measure Pods."""

    async def pause(self) -> None:
        """Refuse.

        Raises:
            ConnectionFailed: always.
        """
        await self.pod.pause()

    async def resume(self) -> None:
        """Do nothing, because no Pod is ever paused."""

    async def kill(self) -> None:
        """End the kernel. One that cannot be ended, because the API does not answer, ends with its Pod."""
        self._killed = True
        if not self.gone.done():
            await self._signal("TERM")
            if self._launcher:
                await asyncio.wait({self.gone}, timeout=END)
            self._end(KernelExit(ExitReason.KILLED))

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the Pod."""
        if self.gone.done():
            raise ConnectionFailed("the sandbox is ending")
        self.make_responsive()
        async for piece in self.pod.run_tool(name, argument, stdin):
            yield piece


class Shared:
    """A Pod that holds a workspace, and its users."""

    def __init__(self, pod: PodHandle, cluster: Cluster) -> None:
        """Begin with a Pod that runs, and without users."""
        self.pod = pod
        self._cluster = cluster
        self.users: dict[str, Guest] = {}
        #: whether the Pod ends, because the last user has left
        self._left_by_all = False
        #: ports of users, and of kernels that start
        self._ports: set[int] = set()

    @property
    def closed(self) -> bool:
        """Whether the Pod takes no more users."""
        return self._left_by_all or not self.pod.alive

    def adopt(self, own: str, info: ConnectionInfo) -> Guest:
        """Add a user of an earlier gateway."""
        return self._add(own, info)

    def _add(self, own: str, info: ConnectionInfo) -> Guest:
        guest = Guest(self.pod, self._cluster, own, info)
        self.users[guest.id] = guest
        self._ports.add(info.shell_port)
        guest.gone.add_done_callback(lambda _: self._left(guest))
        return guest

    def _left(self, guest: Guest) -> None:
        del self.users[guest.id]
        self._free(guest.connection_info.shell_port)

    def _free(self, port: int) -> None:
        self._ports.discard(port)
        self.end_unused()

    def end_unused(self) -> None:
        """End the Pod if it has no user, and none that starts."""
        if not self._ports:
            self._left_by_all = True
            spawn(self.pod.kill(), f"end of Pod {self.pod.id}")

    async def start(self, launch: Launch) -> Guest:
        """Start a kernel in the Pod, or add a user without one.

        Raises:
            QuotaExceeded: when the Pod has as many users as there are ports.
            StartFailed: when the kernel could not be started.
        """
        spec, word = launch.kernelspec, uuid.uuid4().hex[:12]
        free = {FIRST_PORT + PORTS * number for number in range(1, USERS_MAX + 1)} - self._ports
        if not free:
            raise QuotaExceeded(f"at most {USERS_MAX} contexts of a sandbox at a time", max=USERS_MAX)
        info = new_connection_info(
            "tcp",
            EVERYWHERE,
            first_port=min(free),
            encryption=spec.encryption,
            signature=spec.signature,
        )
        self._ports.add(info.shell_port)
        try:
            launcher = await self._run(launch, info, word) if spec.argv else ""
        except BaseException as error:
            self._free(info.shell_port)
            if isinstance(error, SessionError):
                raise StartFailed("the kernel could not be started in its sandbox's Pod") from error
            raise
        return self._add(f"{launcher}{SEPARATOR}{word}", info)

    async def _run(self, launch: Launch, info: ConnectionInfo, word: str) -> str:
        """Start a launcher, and return its process id."""
        place = f"{PRIVATE}/{word}"
        hello = handshake(
            launch, info, python=PYTHON, image=IMAGE_DIR, workspace=WORKSPACE, private=place, env=environment(place)
        )
        command = bounded(launch.limits, [PYTHON, "-I", "-S", "-c", _START, place, _LAUNCH], gvisor=self.pod.gvisor)
        async with self._cluster.run(self.pod.id, command) as stream:
            await stream.write(hello)
            launcher = (await stream.read()).decode().strip()
        if not launcher.isdigit():
            raise ConnectionFailed("the launcher did not start")
        return launcher
