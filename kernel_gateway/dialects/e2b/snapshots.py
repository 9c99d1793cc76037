"""Forks and snapshots of sandboxes. Clients use a snapshot's id like that of a template.

A snapshot without a name has the id `ID:default`. The id of one with a name is `TENANT/NAME:TAG`.
Sources: the requests and parsers of `e2b` 2.63, and the specification in e2b-dev/E2B.
"""

from __future__ import annotations

import re
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field

from kernel_gateway.config import Settings
from kernel_gateway.dialects.e2b.base import ControlHandler
from kernel_gateway.dialects.e2b.models import Body, Seconds, access_model, lifetime
from kernel_gateway.dialects.e2b.templates import TemplateHandler, find_template
from kernel_gateway.dialects.e2b.tokens import new_id, new_secret
from kernel_gateway.errors import NotSupported
from kernel_gateway.http.formats import failure_text
from sessions.model.errors import InvalidRequest, SessionError, TemplateNotFound
from sessions.model.values import SessionKey
from sessions.sandbox.sandbox import Sandbox
from sessions.sandbox.snapshots import Snapshots
from sessions.store.session_records import SnapshotRecord

#: seconds that a fork lives if its client does not say. Source: the specification
FORK_LIFETIME = 15
#: additional seconds that forks may take until all are made; afterwards, each lives as long as its client asks
MAKING = 600.0
#: forks of one call, as E2B's SDKs have it; they are made one after the other
FORKS_MAX = 20
PAGE_MAX = 100
DEFAULT = "default"
#: a snapshot's name, perhaps after its tenant, and perhaps with a tag
_NAME = re.compile(r"(?:([^/:]{1,128})/)?([a-z0-9][a-z0-9_-]{0,127})(?::([a-z0-9][a-z0-9._-]{0,127}))?")
_LIMIT = re.compile("[0-9]{1,9}")
#: place of a snapshot in the list: its time in seconds since 1970, and its id
_TOKEN = re.compile(r"([0-9]{1,12}\.[0-9]{6})-([0-9a-f]{32})")


class Fork(Body):
    """Forks to make."""

    timeout: Seconds | None = None
    count: Annotated[int, Field(ge=1, le=FORKS_MAX)] = 1


class NewSnapshot(Body):
    """A snapshot to take."""

    name: str | None = None
    memory: bool | None = None


def stored_name(asked: str, tenant: str) -> str:
    """Return the name and the tag of a snapshot as the gateway stores them, `NAME:TAG`.

    Raises:
        InvalidRequest: when the name is not valid, or it names another tenant.
    """
    found = _NAME.fullmatch(asked)
    if found is None or found[1] not in {None, tenant}:
        raise InvalidRequest(
            "a snapshot's name has small letters, digits, - and _, and perhaps a tag after a colon", field="name"
        )
    return f"{found[2]}:{found[3] or DEFAULT}"


def find_snapshot(snapshots: Snapshots, tenant: str, asked: str) -> SnapshotRecord:
    """Return a tenant's snapshot by its id, or by its name.

    Raises:
        TemplateNotFound: when the tenant has no such snapshot.
    """
    try:
        name = stored_name(asked, tenant)
    except InvalidRequest:
        raise TemplateNotFound(f"there is no snapshot {asked[:64]!r}") from None
    for record in reversed(snapshots.of(tenant)):
        if name in {record.name, f"{record.key.name}:{DEFAULT}"}:
            return record
    raise TemplateNotFound(f"there is no snapshot {asked[:64]!r}")


def snapshot_for(asked: str, snapshots: Snapshots, tenant: str, settings: Settings) -> SnapshotRecord | None:
    """Return the snapshot that a new sandbox continues from. None means that it begins from a template.

    Raises:
        TemplateNotFound: when there is neither.
    """
    try:
        find_template(asked, settings)
    except TemplateNotFound as error:
        try:
            return find_snapshot(snapshots, tenant, asked)
        except TemplateNotFound:
            raise error from None
    return None


def snapshot_model(record: SnapshotRecord) -> dict[str, Any]:
    """Return a snapshot as clients see it."""
    if not record.name:
        return {"snapshotID": f"{record.key.name}:{DEFAULT}", "names": []}
    tenant = record.key.tenant
    return {"snapshotID": f"{tenant}/{record.name}", "names": [f"{tenant}/{record.name.partition(':')[0]}"]}


class CopyingHandler(ControlHandler):
    """Base of the handlers that copy a sandbox."""

    def copied(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox that is to be copied.

        Raises:
            NotSupported: when this gateway cannot copy sandboxes.
            SandboxNotFound: when there is no such sandbox.
        """
        ability = self.gateway.sandboxes.copies
        if not ability.on:
            raise NotSupported(f"sandboxes cannot be copied here: {ability.detail}")
        return self.sandbox(sandbox_id)


class ForkHandler(CopyingHandler):
    """`/sandboxes/{id}/fork`."""

    async def post(self, sandbox_id: str) -> None:
        """Make sandboxes that begin with this one's memory and files. Each that fails is an entry with its error."""
        sandbox, body = self.copied(sandbox_id), self.body(Fork)
        if sandbox.pausing.paused:
            self.conflict("the sandbox is paused: resume it first")
            return
        lives = max(1.0, lifetime(FORK_LIFETIME if body.timeout is None else body.timeout, self.gateway.settings))
        wanted = [
            (
                SessionKey(self.tenant, new_id()),
                replace(sandbox.spec, secret=new_secret(), key_id=self.caller.key_id, lifetime=lives + MAKING),
            )
            for _ in range(body.count)
        ]
        entries = []
        for made in await self.gateway.sandboxes.fork(sandbox, wanted):
            if isinstance(made, SessionError):
                entries.append({"error": {"code": int(self.status_of(made)), "message": failure_text(made)}})
            else:
                made.amend(lifetime=made.age() + lives)
                entries.append({"sandbox": access_model(made)})
        self.set_status(HTTPStatus.CREATED)
        self.finish_json(entries)


class SandboxSnapshotsHandler(CopyingHandler):
    """`/sandboxes/{id}/snapshots`."""

    async def post(self, sandbox_id: str) -> None:
        """Take a snapshot of the sandbox."""
        sandbox, body = self.copied(sandbox_id), self.body(NewSnapshot)
        sandbox.pausing.check()
        name = stored_name(body.name, self.tenant) if body.name else ""
        taken = await self.gateway.sandboxes.snapshots.take(sandbox, name, memory=body.memory is not False)
        self.set_status(HTTPStatus.CREATED)
        self.finish_json(snapshot_model(taken))


class SnapshotsHandler(ControlHandler):
    """`/snapshots`."""

    def get(self) -> None:
        """List one page of the tenant's snapshots, newest first."""
        own = sorted(self.gateway.sandboxes.snapshots.of(self.tenant), key=_place, reverse=True)
        if source := self.get_query_argument("sandboxID", ""):
            own = [record for record in own if record.source == source]
        if name := self.get_query_argument("name", ""):
            own = [record for record in own if self._is_called(record, name)]
        if token := self.get_query_argument("nextToken", ""):
            if (found := _TOKEN.fullmatch(token)) is None:
                raise InvalidRequest("nextToken is not valid", field="nextToken")
            own = [record for record in own if _place(record) < (found[1].zfill(20), found[2])]
        limit = self.get_query_argument("limit", str(PAGE_MAX))
        if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= PAGE_MAX:
            raise InvalidRequest(f"limit must be from 1 to {PAGE_MAX}", field="limit")
        page = own[: int(limit)]
        if len(own) > len(page):
            last = page[-1]
            self.set_header("X-Next-Token", f"{last.created_at:.6f}-{last.key.name}")
        self.finish_json([snapshot_model(record) for record in page])

    def _is_called(self, record: SnapshotRecord, name: str) -> bool:
        own, team = record.name.partition(":")[0], f"{record.key.tenant}/"
        called = {own, record.name} if own else {record.key.name, f"{record.key.name}:{DEFAULT}"}
        return name.removeprefix(team) in called


def _place(record: SnapshotRecord) -> tuple[str, str]:
    return f"{record.created_at:.6f}".zfill(20), record.key.name


class TemplateOrSnapshotHandler(TemplateHandler):
    """`/templates/{id}`."""

    async def delete(self, name: str) -> None:
        """Delete a snapshot. A template is the operator's, and cannot be deleted."""
        if (found := snapshot_for(name, self.gateway.sandboxes.snapshots, self.tenant, self.tenant_settings)) is None:
            self.refuse()
            return
        await self.gateway.sandboxes.snapshots.delete(found.key)
        self.set_status(HTTPStatus.NO_CONTENT)
