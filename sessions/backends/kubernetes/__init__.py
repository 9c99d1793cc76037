"""Kernels as Pods of a Kubernetes cluster, by default with gVisor as their runtime.

Rooms: `profile` says what a Pod is made with; `cluster` calls the API, and `streams` is the input and output of a
process in a Pod; `states` reads a Pod's object; `handle` is the Pod of a kernel; `guests` are kernels that share a Pod;
`walls` proves the isolation. This package knows no message of a kernel, and no session.

Files are in their Pod's own volume, and end with it. When a kernel ends, its Pod stays for the files: the cluster makes
the next container in it, which waits there. A new kernel of the same workspace gets a copy from the old Pod.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from sessions.backends.abilities import Ability, Finding
from sessions.backends.base import Launch
from sessions.backends.handshake import handshake, new_connection_info
from sessions.backends.kubernetes.cluster import Cluster, Refused, unavailable
from sessions.backends.kubernetes.doctor import examine
from sessions.backends.kubernetes.guests import SEPARATOR, Guest, Shared
from sessions.backends.kubernetes.handle import PodHandle
from sessions.backends.kubernetes.profile import (
    EVERYWHERE,
    FIRST_PORT,
    IMAGE_DIR,
    PRIVATE,
    PYTHON,
    WORKSPACE,
    WORKSPACE_LABEL,
    KubernetesSettings,
    digest,
    environment,
    kernel_pod,
    limits_of,
    network_policy,
)
from sessions.backends.kubernetes.walls import prove
from sessions.backends.no_sleep import NoSleep
from sessions.model.checkpoint import SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    NetworkNotAllowed,
    NotInitialized,
    SessionError,
    StartFailed,
)
from sessions.model.kernelspecs import NO_KERNEL, Inventory
from sessions.model.stopwatch import Stage, lap
from sessions.model.tasks import forever, gather_all, spawn
from sessions.model.values import Limits

__all__ = ["KubernetesBackend", "KubernetesSettings"]

log = structlog.get_logger()

#: seconds before a broken watch is opened again
AGAIN = 1.0
#: seconds to copy a workspace to a new Pod
COPY = 120.0
#: seconds for which the connection stays open that has brought a handshake
DELIVERED = 5.0
#: Writes all files as an archive. What even its owner may not read becomes readable to the owner, or it would be lost.
_ARCHIVE = f"""
cd {WORKSPACE} || exit
find . -type d ! -perm -500 -exec chmod u+rx {{}} ';' -o -type f ! -perm -400 -exec chmod u+r {{}} +
exec tar -cSf - .
"""
#: Makes the files of an archive, without the workspace itself, which belongs to another user. Then reads the input's
#: end, which comes only after the archiving program has succeeded.
_EXTRACT = f"""
cd {WORKSPACE} || exit
tar --strip-components=1 -xf - || exit
exec cat >/dev/null
"""
#: exit codes of `tar` with which all files are in the archive. With 1, some were written meanwhile.
_ARCHIVED = (0, 1)


class KubernetesBackend:
    """Starts kernels as hardened Pods."""

    name = "kubernetes"

    def __init__(self, settings: KubernetesSettings) -> None:
        self.settings = settings
        self.isolation = f"kubernetes with runtime class {settings.runtime_class or 'of the nodes'}" + (
            " (gVisor)" if settings.gvisor else " (no gVisor: kernels share the node's kernel)"
        )
        self.sleep = NoSleep("Kubernetes cannot write the memory of Pods to disk, so there are no checkpoints either")
        self.inventory: Inventory | None = None
        self._cluster = Cluster(settings)
        self._handles: dict[str, PodHandle] = {}
        #: the Pod that has the files of each workspace
        self._latest: dict[str, PodHandle] = {}
        #: the Pod of each workspace that several containers share
        self._shared: dict[str, asyncio.Future[Shared]] = {}
        #: users of such Pods that an earlier gateway has started
        self._guests: dict[str, Guest] = {}
        self._gvisor = False
        self._proven = False
        #: held while Pods of a proof may run
        self._proving = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        #: whether an earlier gateway's Pods are adopted, so that all others belong to nobody
        self._adopted = False
        self._away = False
        self._doubt_listeners: list[Callable[[], None]] = []

    @property
    def refusal(self) -> BackendUnavailable | None:
        """The error for new kernels while the API does not answer, or None."""
        return unavailable() if self._away else None

    @property
    def keeps_files(self) -> bool:
        """False, because files end with their Pod."""
        return False

    @property
    def keeps_kernels(self) -> bool:
        """True, because Pods belong to the cluster."""
        return True

    @property
    def room(self) -> int:
        """0, because the nodes' disks are not known."""
        return 0

    @property
    def golden_images(self) -> Ability:
        """Off, because the cluster cannot restore Pods."""
        return Ability(on=False, detail="Kubernetes restores no Pods")

    @property
    def pauses(self) -> Ability:
        """Off, because the cluster cannot freeze Pods."""
        return Ability(on=False, detail="Kubernetes cannot freeze Pods")

    def examine(self, *, tried: bool) -> Iterator[Finding]:
        """Check whether the cluster has what kernels need; `tried`: also start the Pods of the proof."""
        off = {"golden images": self.golden_images, "sleep": self.sleep.ability, "pauses": self.pauses}
        return examine(self.settings, tried=tried, off=off)

    @property
    def leftovers(self) -> int:
        """Number of Pods whose removal is not confirmed."""
        return sum(handle.leftover for handle in self._handles.values())

    def report_doubts(self, listener: Callable[[], None]) -> None:
        """Call one more listener when the API stops answering or answers again."""
        self._doubt_listeners.append(listener)

    def report_restores(self, _listener: Callable[[bool], None]) -> None:
        """Do nothing, because Pods are never restored."""

    async def prepare(self) -> None:
        """Make the network policy, and prove that it and the runtime isolate kernels.

        Raises:
            NotInitialized: when the proof fails. Then no kernel is started.
            BackendUnavailable: when the API does not answer.
        """
        await self._cluster.connect()
        try:
            changed = await self._cluster.ensure_policy(network_policy(self.settings))
            if changed or not self._proven:
                self._proven = False
                async with self._proving:
                    proven = await prove(self._cluster, self.settings)
                self._gvisor, self.inventory, self._proven = proven.gvisor, proven.inventory, True
        except Refused as error:
            raise NotInitialized(f"the cluster refuses the network policy of kernels: {error}") from error
        self._away = False
        if self._watching is None:
            self._watching = spawn(forever(self._watch, AGAIN), "watch of Pods")

    async def _watch(self) -> None:
        """Report all changes of Pods to their handles, until the API ends the watch or does not answer."""
        try:
            started = list(self._handles.values())  # before the list, which may lack Pods that are made from now on
            pods, version = await self._cluster.pods()
            self._note_all(started, pods)
            if self._adopted and not self._proving.locked():
                await self._remove_unknown(pods)
            async with self._cluster.watch(version) as changes:
                self._note_answer(away=False)  # not before: without a watch, no kernel would be seen to run
                async for kind, pod in changes:
                    if kind == "ERROR":  # the version is too old for the API
                        break
                    self._note_change(kind, pod)
        except (BackendUnavailable, Refused):
            self._note_answer(away=True)
            await asyncio.sleep(AGAIN)

    def _note_all(self, started: list[PodHandle], pods: list[dict[str, Any]]) -> None:
        """Report all Pods that there are to their handles, and to the handles that were there before which are not."""
        for pod in pods:
            self._note_change("ADDED", pod)
        there = {pod["metadata"]["name"] for pod in pods}
        for handle in started:
            if handle.id not in there:
                handle.note_missing()

    async def _remove_unknown(self, pods: list[dict[str, Any]]) -> None:
        """Remove Pods of no kernel, which a start has left when the API did not answer, or an earlier gateway."""
        for name in (pod["metadata"]["name"] for pod in pods):
            if name not in self._handles:
                log.info("a Pod that belongs to no kernel is removed", pod=name)
                try:
                    await self._cluster.delete_pod(name)
                except Refused as error:  # perhaps only for now; the other Pods and the watch do not wait for it
                    log.warning("the cluster refuses to remove a Pod", pod=name, reason=str(error))

    def _note_change(self, kind: str, pod: dict[str, Any]) -> None:
        if (handle := self._handles.get(pod["metadata"]["name"])) is None:
            return
        handle.note(pod)
        if kind == "DELETED":
            handle.note_removed()

    def _note_answer(self, *, away: bool) -> None:
        if away != self._away:
            self._away = away
            log.warning("the cluster's API stopped to answer" if away else "the cluster's API answers again")
            for listener in self._doubt_listeners:
                listener()

    async def settled(self) -> None:
        """Do nothing, because Pods are never restored and never sleep."""

    async def adopt(
        self, kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], asleep: Collection[SleepImage] = ()
    ) -> dict[str, PodHandle | Guest]:
        """Take over the given Pods of an earlier gateway, and remove all others that it has left.

        Raises:
            BackendUnavailable: when the API does not answer.
        """
        del asleep  # no kernel sleeps
        pods, _ = await self._cluster.pods()
        names = {digest(self.settings.instance, workspace): workspace for workspace in workspaces}
        adopted: dict[str, PodHandle | Guest] = {}
        for pod in pods:
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            users = {each: info for each, info in kernels.items() if each.partition(SEPARATOR)[0] == name}
            if not users:
                continue
            if name not in self._handles:  # else this is another attempt
                info = next(iter(users.values()))
                workspace = names.get(labels.get(WORKSPACE_LABEL, ""))
                handle = self._handle(name, info, limits_of(pod), workspace)
                if name in users and workspace is not None:
                    self._latest[workspace] = handle
                    handle.take_files()
                handle.note(pod)
                self._adopt_guests(handle, users, workspace)
            if not self._handles[name].number:  # else the kernel has ended meanwhile
                adopted |= {each: self._guests.get(each, self._handles[name]) for each in users}
        await self._remove_unknown(pods)
        self._adopted = True
        return adopted

    def _adopt_guests(self, pod: PodHandle, users: Mapping[str, ConnectionInfo], workspace: str | None) -> None:
        """Take over the users of a Pod, if they share it."""
        shared = Shared(pod, self._cluster)
        for handle_id, info in users.items():
            if own := handle_id.partition(SEPARATOR)[2]:
                self._guests[handle_id] = shared.adopt(own, info)
                self._guests[handle_id].gone.add_done_callback(partial(self._forget_guest, handle_id))
        if workspace is not None and shared.users:
            self._shared[workspace] = asyncio.get_running_loop().create_future()
            self._shared[workspace].set_result(shared)

    def _forget_guest(self, handle_id: str, _ended: object) -> None:
        del self._guests[handle_id]

    def _handle(self, name: str, info: ConnectionInfo, limits: Limits, workspace: str | None) -> PodHandle:
        ended = partial(self._ended, workspace)
        handle = PodHandle(self._cluster, name, info, limits, ended, gvisor=self._gvisor)
        self._handles[name] = handle
        return handle

    def _ended(self, workspace: str | None, handle: PodHandle) -> None:
        """Keep a Pod that stays for its files, until the next kernel has them. Forget any other Pod."""
        present = workspace if workspace is not None and self._latest.get(workspace) is handle else None
        if not handle.stays:
            if present is not None:
                del self._latest[present]
            spawn(self._forget(handle), "forget Pod")
            return
        self._handles[handle.id] = after = handle.next()
        if present is not None:
            self._latest[present] = after
        else:
            spawn(after.give_up_files(), "end of Pod")
        after.note(handle.seen)

    async def _forget(self, handle: PodHandle) -> None:
        await handle.removed()
        self._handles.pop(handle.id, None)

    async def start(self, launch: Launch) -> PodHandle | Guest:
        """Start a kernel's Pod, or a kernel in the Pod of those that share its workspace.

        Raises:
            NotInitialized: when no proof has succeeded yet.
            NetworkNotAllowed: when the kernel needs the egress proxy.
            StartFailed: when the cluster refuses the Pod, or cannot run it.
            QuotaExceeded: when too many share its workspace.
            BackendUnavailable: when the API does not answer.
        """
        if not self._proven:
            raise NotInitialized
        if launch.egress is not None:
            raise NetworkNotAllowed("isolation `kubernetes` has no egress proxy, so it has no `allowlist`")
        if launch.shared and launch.workspace is not None:
            return await (await self._shared_pod(launch, launch.workspace)).start(launch)
        return await self._start_pod(launch)

    async def _shared_pod(self, launch: Launch, workspace: str) -> Shared:
        """Return the Pod of a shared workspace. The first of its users makes it."""
        making = self._shared.get(workspace)
        if making is None or (making.done() and (making.exception() or making.result().closed)):
            making = self._shared[workspace] = spawn(self._make_shared(launch), f"Pod of workspace {workspace}")
        return await asyncio.shield(making)

    async def _make_shared(self, launch: Launch) -> Shared:
        return Shared(await self._start_pod(replace(launch, kernelspec=NO_KERNEL, cwd="")), self._cluster)

    async def _start_pod(self, launch: Launch) -> PodHandle:
        before = self._latest.get(launch.workspace) if launch.workspace and not launch.shared else None
        name, spec = f"kernel-gateway-{uuid.uuid4().hex}", launch.kernelspec
        info = new_connection_info(
            "tcp",
            EVERYWHERE,
            first_port=FIRST_PORT,
            encryption=spec.encryption,
            signature=spec.signature,
        )
        handle = self._handle(name, info, launch.limits, launch.workspace)
        try:
            await self._run(handle, launch, info, before)
        except BaseException as error:
            await asyncio.shield(handle.kill())
            if isinstance(error, Refused):
                log.warning("the cluster refuses a Pod", reason=str(error))
                raise StartFailed("the cluster refuses the kernel's Pod") from error
            if isinstance(error, ConnectionFailed):
                raise StartFailed("the kernel's Pod cannot be reached") from error
            raise
        if launch.workspace is not None and not launch.shared:
            self._have_files(handle, launch.workspace)
        return handle

    def _have_files(self, handle: PodHandle, workspace: str) -> None:
        """Record that a new Pod has the files of a workspace."""
        former = self._latest.get(workspace)
        self._latest[workspace] = handle
        handle.take_files()
        if former is not None:
            spawn(former.give_up_files(), "end of the former Pod")

    async def _run(self, handle: PodHandle, launch: Launch, info: ConnectionInfo, before: PodHandle | None) -> None:
        await self._cluster.create_pod(kernel_pod(self.settings, handle.id, launch, gvisor=self._gvisor))
        lap(Stage.CREATE)
        await handle.running()
        if before is not None:
            await _copy(before, handle)
        hello = handshake(
            launch, info, python=PYTHON, image=IMAGE_DIR, workspace=WORKSPACE, private=PRIVATE, env=environment()
        )
        await self._deliver(handle, hello)
        if not handle.alive:
            raise StartFailed("the kernel ended while it started")
        lap(Stage.RUN)

    async def _deliver(self, handle: PodHandle, hello: bytes) -> None:
        """Send a handshake to the launcher, and leave the connection open until the launcher has surely read it.

        Raises:
            ConnectionFailed: when the launcher cannot be reached, or the connection breaks before.
        """
        async with AsyncExitStack() as connection:
            stream = await connection.enter_async_context(self._cluster.run(handle.id, None))
            await stream.write(hello)
            spawn(_close_later(connection.pop_all(), handle), "handshake")

    async def delete_workspace(self, workspace: str) -> None:
        """Remove the Pod that has stayed for the files of a workspace, if there is one."""
        if (making := self._shared.pop(workspace, None)) is not None:
            making.add_done_callback(_end_unused)
        if (kept := self._latest.pop(workspace, None)) is not None:
            await kept.give_up_files()

    async def release(self) -> None:
        """Leave the Pods and the policy to the next gateway."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        await gather_all(*(handle.end_toolbox() for handle in list(self._handles.values())))
        async with self._proving:  # a proof that was cancelled removes its Pods first
            await self._cluster.close()

    async def close(self) -> None:
        """End all kernels."""
        try:
            await gather_all(*(handle.remove() for handle in list(self._handles.values())))
        finally:
            await self.release()


def _end_unused(made: asyncio.Future[Shared]) -> None:
    """End the Pod of a shared workspace if nobody uses it, because all who wanted it have left while it was made."""
    if not made.cancelled() and made.exception() is None:
        made.result().end_unused()


async def _close_later(connection: AsyncExitStack, handle: PodHandle) -> None:
    """Close the connection that has brought a handshake."""
    async with connection:
        await asyncio.wait({handle.gone}, timeout=DELIVERED)


async def _copy(old: PodHandle, new: PodHandle) -> None:
    """Copy the files of a workspace from one Pod to another, before the second kernel starts.

    Raises:
        StartFailed: when that fails. A kernel without its files must not start. They stay in the first Pod.
    """
    try:
        await old.running()  # a Pod that has stayed may have to make its next container
        async with (
            asyncio.timeout(COPY),
            aclosing(old.output(["sh", "-c", _ARCHIVE], None, within=None, successes=_ARCHIVED)) as archive,
            aclosing(new.output(["sh", "-c", _EXTRACT], archive, within=None, successes=(0,))) as extracted,
        ):
            async for _ in extracted:
                pass
    except (SessionError, TimeoutError) as error:
        raise StartFailed("the session's files could not be copied to its new Pod") from error
