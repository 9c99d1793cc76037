"""One run: its input files are placed, the code runs, and the files that it has left are stored for the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_gateway.dialects.librechat.base import owner_of
from kernel_gateway.dialects.librechat.models import Exec, InputFile
from kernel_gateway.dialects.librechat.results import stderr_of, stdout_of
from kernel_gateway.gateway import Gateway
from sessions.file_store.store import FileStore, Place, StoredFile, new_id
from sessions.guest import workspace
from sessions.guest.paths import session_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import Entry
from sessions.model.errors import KernelDied, SessionError
from sessions.model.values import ExecutionResult, SessionKey
from sessions.session.executions import Running
from sessions.session.session import Session

#: watches a cell while it runs
Follow = Callable[[Running], Awaitable[None]]

#: levels of directories in which files are found, files of one run that are stored, and bytes of each
DEPTH, OUTPUTS_MAX, OUTPUT_MAX = 10, 50, 10 * 1024**2


@dataclass
class Found:
    """The files of a run, in the form of the answer."""

    files: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    #: files that the run has made or changed, and those of them that could be stored
    attempted: int = 0
    delivered: int = 0
    #: why others could not
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the answer."""
        told: dict[str, Any] = {"files": self.files}
        if self.deleted:
            told["deleted_files"] = self.deleted
        if failed := self.attempted - self.delivered:
            counts = {"attempted": self.attempted, "delivered": self.delivered, "failed": failed}
            status = "partial" if self.delivered else "failed"
            told["artifact_delivery"] = {"code": "artifact_delivery_failed", "status": status} | counts
        return told


class CodeRun:
    """One request to run code."""

    def __init__(self, gateway: Gateway, tenant: str, user: str, body: Exec, timeout: float) -> None:
        """Check the request; nothing runs yet. The code may run for `timeout` seconds.

        Raises:
            InvalidRequest: when the language is unknown or takes no arguments, or a path is not allowed.
            FileNotFound: when an input file does not exist, or belongs to others.
        """
        self._gateway, self._tenant, self._user = gateway, tenant, user
        self._store: FileStore = gateway.file_store
        self._language, self._hinted = body.language, body.session_name(user)
        self._request = body.request(timeout)
        self._batch = new_id()
        #: input files by their path; of two with the same path, the newer one
        self._inputs: dict[str, tuple[InputFile, StoredFile]] = {}
        for asked, stored in sorted(map(self._stored, body.files), key=lambda each: each[1].created_at):
            self._inputs[session_path(asked.name)] = asked, stored

    def _stored(self, asked: InputFile) -> tuple[InputFile, StoredFile]:
        version = None if asked.version is None else str(asked.version)
        owner = owner_of(self._user, asked.kind, asked.resource_id, version)
        return asked, self._store.find(Place(self._tenant, owner, asked.storage_session_id), asked.id)

    async def answer(self, follow: Follow | None = None) -> dict[str, Any]:
        """Run the code, and return the answer.

        Args:
            follow: is awaited while the code runs. None means that nobody watches it.

        Raises:
            SessionError: when the code did not run.
        """
        registry = self._gateway.registry
        spec = replace(registry.defaults_of(self._tenant), language=self._language)
        if self._hinted is None:
            async with registry.throwaway(self._tenant, spec) as session:
                return await self._run(session, follow)
        session = await registry.get_or_create(SessionKey(self._tenant, self._hinted), spec)
        told = await self._run(session, follow)
        status = "new" if told["state"] == "new" else "reused"
        return told | {"runtime_session_id": f"rt_{self._hinted}", "runtime_status": status}

    async def _run(self, session: Session, follow: Follow | None) -> dict[str, Any]:
        with session.use():
            for path, (_, stored) in self._inputs.items():
                await workspace.write_file(session, path, stored.size, self._store.read(stored), new_mode=0o644)
            before = await _tree(session)
            async with session.execute(self._request) as execution:
                if follow is not None:
                    await follow(execution)
                result = await execution.result()
            found = Found()
            try:
                if not session.alive:
                    raise KernelDied("the kernel ended before the files of the run were read")
                await self._collect(session, before, found)
            except SessionError as error:
                found.attempted = max(found.attempted, found.delivered + 1)
                found.notes.append(f"The files of this run are incomplete: {error.message} ({error.code})")
        return self._told(result, found)

    def _told(self, result: ExecutionResult, found: Found) -> dict[str, Any]:
        """Return the answer. The last fields are ours."""
        return {
            "session_id": self._batch,
            "stdout": stdout_of(result),
            "stderr": stderr_of(result, found.notes),
            **found.as_dict(),
            "wall_time": round(result.duration * 1000),
            "state": result.state.value,
            "state_reason": result.state_reason,
            "truncated": result.truncated,
        }

    async def _collect(self, session: Session, before: Mapping[str, Entry], found: Found) -> None:
        """Store the files that are new or changed, and name the input files that are not.

        Raises:
            SessionError: when the session's files cannot be read.
        """
        after = await _tree(session)
        for path, (asked, stored) in self._inputs.items():
            if path not in after:
                found.deleted.append(asked.name)
            elif stored.read_only or _same(before.get(path), after[path]):
                found.files.append(_inherited(asked))
        inherited = {path for path, (_, stored) in self._inputs.items() if stored.read_only}
        changed = [p for p, entry in after.items() if p not in inherited and not _same(before.get(p), entry)]
        found.attempted = len(changed)
        for path in changed[:OUTPUTS_MAX]:
            await self._keep(session, path, found)
        if len(changed) > OUTPUTS_MAX:
            found.notes.append(f"Only {OUTPUTS_MAX} of {len(changed)} new files were stored.")

    async def _keep(self, session: Session, path: str, found: Found) -> None:
        try:
            async with read_file(session, path) as file:
                if file.size > OUTPUT_MAX:
                    found.notes.append(f"{path} was not stored: it has more than {OUTPUT_MAX} bytes.")
                    return
                place = Place(self._tenant, owner_of(self._user, "user", "", None), self._batch)
                stored = await self._store.write(place, path, file.content)
        except SessionError as error:
            found.notes.append(f"{path} was not stored: {error.message} ({error.code})")
            return
        found.delivered += 1
        told: dict[str, Any] = {"id": stored.id, "name": path, "storage_session_id": self._batch}
        if path in self._inputs:
            asked, _ = self._inputs[path]
            told["modified_from"] = {"id": asked.id, "storage_session_id": asked.storage_session_id}
        found.files.append(told)


def _inherited(asked: InputFile) -> dict[str, Any]:
    known = asked.model_dump(exclude_unset=True)
    return known | {"inherited": True}


async def _tree(session: Session) -> dict[str, Entry]:
    """Return the regular files of a session by their path, without those of hidden directories."""
    listing = await workspace.list_files(session, "", DEPTH)
    return {
        entry["path"]: entry
        for entry in listing.entries
        if entry["type"] == "file" and not workspace.in_hidden_directory(entry)
    }


def _same(before: Entry | None, after: Entry) -> bool:
    return before is not None and (before["size"], before["modified"]) == (after["size"], after["modified"])
