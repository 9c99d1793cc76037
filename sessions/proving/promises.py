"""The promises, in the order of their proofs. Later proofs use the sessions of earlier ones.

Each function proves one promise, and returns its observation. It raises `Refused` or a `SessionError` if the promise is
not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum

from sessions.model.errors import SessionError
from sessions.model.values import ExecuteRequest, ExecutionResult, StateChange, Status
from sessions.proving import probes, walls
from sessions.proving.ground import Ground, Refused, why
from sessions.session.states import State

_MIB = 1024**2
#: disk of the workspace that is filled, unless sessions have less
_DISK = 32 * _MIB
#: a workspace may hold 1/_TABLES more than its limit: this part is for tables of the file system, which may take less
_TABLES = 16
#: seconds for which a kernel is frozen
_FROZEN = 1.5
#: seconds until the gateway knows of a container that was removed
_NOTICED = 20.0
_CHECKPOINT = "proven"
_FILE = "__import__('pathlib').Path('file')"
#: measures the longest time for which nothing in the kernel has run
_TICKING = """
import threading, time
def tick():
    global longest
    last = time.monotonic()
    while ticking:
        time.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
ticking, longest = True, 0.0
threading.Thread(target=tick, daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of this project, and its proof."""

    name: str
    keep: Callable[[Ground], Awaitable[str]]
    #: seconds that the proof should take at most, on an ordinary machine without much other work
    within: float
    #: names of promises that must have been kept before
    needs: tuple[str, ...] = ("start",)


# -- cells ---------------------------------------------------------------------------------------------------


async def start(ground: Ground) -> str:
    """A session starts, and keeps its variables from cell to cell."""
    await ground.run("main", "value = 41")
    if (found := await ground.ask("main", "value + 1")) != 42:  # noqa: PLR2004 - as asked for
        raise Refused(f"41 + 1 is {found} in a later cell")
    return ""


async def interrupt(ground: Ground) -> str:
    """An interrupt ends a cell that would run for ever, and variables stay."""
    session = await ground.session("main")
    async with session.execute(ExecuteRequest("print('on', flush=True)\nwhile True: pass")) as running:
        async for event in running:
            if event["type"] == "output" and not await session.interrupt():
                raise Refused("the session said that no cell runs")
        result = await running.result()
    if result.status is not Status.INTERRUPTED:
        raise Refused(f"the cell ended with {result.status} instead: {why(result)}")
    if await ground.ask("main", "value") != 41:  # noqa: PLR2004 - as set by `start`
        raise Refused("variables have changed")
    return ""


async def freeze(ground: Ground) -> str:
    """Nothing runs in a kernel while it is frozen, and it continues afterwards."""
    await ground.run("main", _TICKING)
    await asyncio.sleep(_FROZEN)
    if (control := await ground.ask("main", "longest")) > _FROZEN / 2:
        raise Refused(f"a kernel stood still for {control:.1f} s without being frozen, so the attempt shows nothing")
    container = await ground.container("main")
    await container.pause()
    try:
        await asyncio.sleep(_FROZEN)
    finally:
        await container.resume()
    if (longest := await ground.ask("main", "longest")) < _FROZEN:
        raise Refused(f"a kernel that was frozen for {_FROZEN:g} s stood still for {longest:.1f} s only")
    await ground.run("main", "ticking = False")
    return ""


# -- memory on disk ------------------------------------------------------------------------------------------


async def restore(ground: Ground) -> str:
    """A new session's kernel is restored from a golden image, with its modules imported, also one with lower limits."""
    await _settled(ground)
    defaults = ground.registry.defaults
    lower = defaults.limits.narrowed({"disk": min(_DISK, defaults.limits.disk)})
    for name, spec in (("restored", defaults), ("lower", replace(defaults, limits=lower))):
        ground.restored.clear()
        await ground.session(name, spec)
        await ground.run(name, "1")
        if ground.restored != [True]:
            which = "the kernel" if spec is defaults else f"the kernel with a disk of {lower.disk // _MIB} MiB"
            raise Refused(f"{which} was started plainly, because it could not be restored")
        ground.end(name)
    return ground.backend.golden_images.detail


async def _settled(ground: Ground) -> None:
    ability = ground.backend.golden_images
    if not ability.on:
        raise Refused(ability.detail)


async def ready(ground: Ground) -> str:
    """The gateway makes its first golden images, and proves each way to continue a kernel from disk."""
    await ground.backend.settled()
    await _settled(ground)
    return ""


async def checkpoint(ground: Ground) -> str:
    """A checkpoint is taken, and the session continues."""
    session = await ground.session("main")
    await ground.run("main", f"value = 'then'; _ = {_FILE}.write_text(value)")
    await session.checkpoints.take(_CHECKPOINT)
    size = session.checkpoints.find(_CHECKPOINT).image.size
    _same(await ground.run("main", "value += ''"), StateChange.PRESERVED)
    return f"{size // _MIB} MiB"


async def rollback(ground: Ground) -> str:
    """A session returns to a checkpoint, with variables and files, and says so."""
    session = await ground.session("main")
    await ground.run("main", f"value = 'now'; _ = {_FILE}.write_text(value)")
    await session.checkpoints.roll_back(_CHECKPOINT)
    _same(await ground.run("main", "1"), StateChange.ROLLED_BACK)
    await _is_then(ground, "main")
    return ""


async def branch(ground: Ground) -> str:
    """Another session begins with the state of this session, and later changes affect only one of them."""
    session = await ground.session("main")
    await ground.registry.branch(session, ground.key("branch"), None)
    await _is_then(ground, "branch")
    await ground.run("branch", f"value = 'else'; _ = {_FILE}.write_text(value)")
    await _is_then(ground, "main")
    ground.end("branch")
    return ""


async def sleep(ground: Ground) -> str:
    """The memory of a session's kernel is written to disk, and its container ends."""
    session = await ground.session("main")
    await ground.run("main", f"value = 'then'; _ = {_FILE}.write_text(value)")
    ability = ground.backend.sleep.ability
    if not ability.on:
        raise Refused(ability.detail)
    if reason := await session.fall_asleep():
        raise Refused(reason)
    if session.state is not State.ASLEEP or session.container is not None or session.sleep_image is None:
        raise Refused(f"the session says that it is {session.state}")
    return f"{session.sleep_image.size // _MIB} MiB"


async def wake(ground: Ground) -> str:
    """A session that sleeps continues with its variables and files."""
    _same(await ground.run("main", "1"), StateChange.PRESERVED)
    await _is_then(ground, "main")
    return ""


def _same(result: ExecutionResult, change: StateChange) -> None:
    if result.state is not change:
        raise Refused(f"the session says that its variables are {result.state}: {result.state_reason}")


async def _is_then(ground: Ground, name: str) -> None:
    if (found := await ground.ask(name, f"[{_FILE}.read_text(), value]")) != ["then", "then"]:
        raise Refused(f"file and variable are {found}, and should be those of the checkpoint")


# -- what goes wrong -----------------------------------------------------------------------------------------


async def full_disk(ground: Ground) -> str:
    """A full workspace refuses more, others have their own room, and files that are deleted make room again."""
    defaults = ground.registry.defaults
    disk = min(_DISK, defaults.limits.disk)
    await ground.session("full", replace(defaults, limits=defaults.limits.narrowed({"disk": disk})))
    most = disk // _MIB
    written, error = await ground.probe("full", probes.filled, "filling", 2 * most + 8)
    if error not in {"ENOSPC", "EDQUOT"}:
        raise Refused(f"{written} MiB were written to a workspace of {most} MiB; then: {error or 'no error'}")
    if not most // 2 <= written <= most + most // _TABLES + 1:
        raise Refused(f"a workspace of {most} MiB was full after {written} MiB")
    if (other := await ground.probe("main", probes.filled, "room", 1)) != [1, ""]:
        raise Refused(f"while a workspace is full, another session cannot write: {other[1]}")
    await ground.probe("main", probes.emptied, "room")
    await ground.probe("full", probes.emptied, "filling")
    if (again := await ground.probe("full", probes.filled, "again", 1)) != [1, ""]:
        raise Refused(f"files were deleted, and there is still no room: {again[1]}")
    ground.end("full")
    return f"full after {written} of {most} MiB"


async def removed(ground: Ground) -> str:
    """When a container is removed from outside, the session reports the loss with its cause, and gets a new kernel."""
    session = await ground.session("peer")
    await ground.run("peer", "value = 'lost'")
    before = session.incarnation
    await ground.remove((await ground.container("peer")).id)
    async with asyncio.timeout(_NOTICED):
        while session.alive:  # noqa: ASYNC110 - a session tells its clients only, which this is none of
            await asyncio.sleep(0.05)
    result = await ground.run("peer", "import json; print(json.dumps('value' in globals()))")
    _same(result, StateChange.LOST)
    if not result.state_reason:
        raise Refused("the session says that its variables are lost, and gives no cause")
    if result.incarnation <= before:
        raise Refused("the session says that it still has the kernel whose container was removed")
    return result.state_reason


async def cleanup(ground: Ground) -> str:
    """Sessions that end leave no container or volume whose removal fails."""
    for name in ("main", "peer"):
        try:
            await ground.registry.end(ground.key(name))
        except SessionError as error:
            raise Refused(f"the end of a session: {error.message}") from error
    if left := ground.backend.leftovers:
        raise Refused(f"{left} containers or volumes could not be removed yet")
    return ""


PROMISES: tuple[Promise, ...] = (
    Promise("isolation test", walls.proof, 15, needs=()),
    Promise("start", start, 15, needs=("isolation test",)),
    Promise("wall: host", walls.host, 10),
    Promise("wall: other sessions", walls.peers, 15),
    Promise("wall: internet", walls.internet, 10),
    Promise("wall: read-only image", walls.image, 2),
    Promise("wall: no privileges", walls.privileges, 2),
    Promise("interrupt", interrupt, 3),
    Promise("freeze", freeze, 6),
    Promise("golden images", ready, 45),
    Promise("restore", restore, 6, needs=("start", "golden images")),
    Promise("checkpoint", checkpoint, 3, needs=("start", "golden images")),
    Promise("rollback", rollback, 4, needs=("checkpoint",)),
    Promise("branch", branch, 4, needs=("checkpoint",)),
    Promise("sleep", sleep, 5, needs=("start", "golden images")),
    Promise("wake", wake, 3, needs=("sleep",)),
    Promise("full workspace", full_disk, 20),
    Promise("removed container", removed, 20),
    Promise("end of sessions", cleanup, 10),
)


class Outcome(Enum):
    """Whether a promise is kept."""

    WORKS = "works"
    #: the promise is kept, but takes longer than it should
    SLOW = "slower than"
    REFUSED = "refused"
    #: the promise is not made here: the settings turn it off, or it cannot be tried
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one promise's proof."""

    name: str
    outcome: Outcome
    #: the observation, or why the promise is not kept
    detail: str = ""
    #: duration of the proof
    seconds: float = 0.0
    #: seconds that the proof should take at most
    within: float = 0.0

    @property
    def tried_well(self) -> bool:
        """Whether the promise was tried and kept, so that later promises can use its sessions."""
        return self.outcome in {Outcome.WORKS, Outcome.SLOW}

    @property
    def broken(self) -> bool:
        """Whether the promise was not kept."""
        return self.outcome is Outcome.REFUSED

    def __str__(self) -> str:
        match self.outcome:
            case Outcome.WORKS:
                said = f"works, {self.seconds:.1f} s"
            case Outcome.SLOW:
                said = f"slower than {self.within:g} s: {self.seconds:.1f} s"
            case Outcome.REFUSED:
                return f"refused: {self.detail}"
            case Outcome.LEFT_OUT:
                return f"left out: {self.detail}"
        return f"{said}; {self.detail}" if self.detail else said
