"""Runs past cells again in a fresh session, one after the other, as executions like any other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from sessions.cells.notebook import NotebookCell
from sessions.cells.outputs import joined
from sessions.model.errors import QuotaExceeded
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, SessionSpec, StateChange
from sessions.replay.comparison import Difference, differences
from sessions.session.registry import Registry
from sessions.session.session import Session


@dataclass(frozen=True, slots=True)
class PastCell:
    """A cell that ran before."""

    #: number among the cells of its session or notebook, from 1
    number: int
    code: str
    #: nbformat outputs that it had
    outputs: Iterable[Mapping[str, Any]]
    #: why it is not run again. Empty means that it is.
    skipped: str = ""
    #: whether a client had restarted the kernel before it
    restarted: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """What is replayed."""

    #: settings of the fresh session
    spec: SessionSpec
    cells: deque[PastCell]
    #: number of cells that ran before and are not kept any more
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Replayed:
    """A past cell, and how it ended now."""

    number: int
    #: why it was not run. Empty means that it was.
    skipped: str
    #: None means that it was not run
    result: ExecutionResult | None
    differences: list[Difference]


def past_of(session: Session) -> Past:
    """Return the cells of a session that are still kept, also of one whose variables are lost."""
    cells: deque[PastCell] = deque()
    last = missing = 0
    for cell in session.transcript.cells():
        missing += cell.number - last - 1
        last = cell.number
        if cell.code:
            restarted = cell.before is not None and cell.before.change is StateChange.RESTARTED
            outputs = Outputs(cell)
            cells.append(PastCell(cell.number, cell.code, outputs, _why_skipped(cell), restarted))
    spec = replace(session.spec, workspace=None, temporary_on_disk=False, place="")
    return Past(spec, cells, missing)


class Outputs:
    """The outputs of a cell in nbformat's form. They are made when they are compared."""

    def __init__(self, cell: NotebookCell) -> None:
        """Keep the packed outputs of a cell."""
        self._packed = cell.outputs

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the outputs."""
        return map(joined, self._packed)


def _why_skipped(cell: NotebookCell) -> str:
    if cell.undone:
        return "a return to a checkpoint has undone it"
    if cell.error is not None:  # it would end the fresh kernel as well, or reach its deadline again
        return f"it did not end by itself: {cell.error.message}"
    return "" if cell.ended else "it still runs"


class Replay:
    """A replay under way; iterate over it for its cells."""

    def __init__(self, session: Session, past: Past, timeout: float, seed: int | None) -> None:
        """Run nothing yet.

        Args:
            session: the fresh session.
            past: the cells to run.
            timeout: seconds that each cell may run.
            seed: number from which the random generators get their seed before each cell. None: they get none.
        """
        self.session = session
        self._past = past
        self._timeout = timeout
        self._seed = seed

    async def __aiter__(self) -> AsyncIterator[Replayed]:
        """Run the cells, and yield each as it ends."""
        while self._past.cells:
            cell = self._past.cells.popleft()
            if cell.restarted:
                await self.session.restart()
            if cell.skipped:
                yield Replayed(cell.number, cell.skipped, None, [])
            else:
                yield await self._run(cell)

    async def _run(self, cell: PastCell) -> Replayed:
        if self._seed is not None:
            await self._plant(self._seed + cell.number)
        async with self.session.execute(ExecuteRequest(cell.code, timeout=self._timeout, stdin=())) as execution:
            result = await execution.result()
        found = await asyncio.to_thread(differences, cell.outputs, result.outputs)
        return Replayed(cell.number, "", result, found)

    async def _plant(self, seed: int) -> None:
        """Seed the random generators by a silent request, which the kernel runs before the cell and does not count."""
        silent = {"silent": True, "store_history": False, "allow_stdin": False}
        code = self.session.kernelspec.seed_code(seed)
        kernel = await self.session.settled_kernel()
        kernel.connection.send("shell", "execute_request", {"code": code} | silent)


class Replays:
    """Begins replays, at most one of each tenant: a replay holds the outputs that it compares with."""

    def __init__(self, registry: Registry) -> None:
        """Make sessions in this registry."""
        self._registry = registry
        self._tenants: set[str] = set()

    @asynccontextmanager
    async def begin(
        self, key: SessionKey, past: Past, cell_timeout: float | None, seed: int | None
    ) -> AsyncIterator[Replay]:
        """Make a fresh session for past cells. It stays when the replay ends, whatever becomes of the cells.

        Args:
            key: key of the fresh session.
            past: the cells to run.
            cell_timeout: seconds that each cell may run. None means as long as a cell of the session may.
            seed: see `Replay`.

        Raises:
            InvalidRequest: when the language has no random generator that can be seeded.
            QuotaExceeded: when a replay of the tenant runs already.
            SessionError: as in `Registry.create`.
        """
        if key.tenant in self._tenants:
            raise QuotaExceeded("a replay runs already; a tenant has one at a time", max=1)
        self._tenants.add(key.tenant)
        try:
            if seed is not None:
                self._registry.kernelspec(past.spec.language).seed_code(seed)
            session = await self._registry.create(key, past.spec)
            longest = past.spec.max_execute_timeout if cell_timeout is None else cell_timeout
            yield Replay(session, past, longest, seed)
        finally:
            self._tenants.discard(key.tenant)
