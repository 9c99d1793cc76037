"""The admin API: keys of all tenants, the audit, and what tenants have used. It needs a key with the role admin.

The secret of a key is sent only in the answer to the request that makes the key.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from datetime import datetime
from http import HTTPStatus
from typing import Self

import structlog
from pydantic import BaseModel, Field

from kernel_gateway.errors import KeyNotFound
from kernel_gateway.http.admin_handler import AdminHandler
from kernel_gateway.http.openapi import TEXT
from kernel_gateway.http.request_body import Body
from kernel_gateway.http.usage_report import UsageReport
from kernel_gateway.identity.keystore import Key, KeyForm, Role
from kernel_gateway.times import moment, seconds_of
from sessions.model.errors import InvalidRequest
from sessions.model.values import valid_name
from sessions.store.audit_search import Account, Search
from sessions.store.usage_store import usage_of

log = structlog.get_logger()

#: default and maximum number of executions in one answer
PAGE = 100
PAGE_MAX = 1000

#: how times are written in a query
_TIME = "a date or a time as in ISO 8601, in UTC unless it has an offset, or seconds since 1970"
#: parameters of a period
PERIOD_QUERY = {
    "since": TEXT | {"description": f"only what was then or later: {_TIME}"},
    "until": TEXT | {"description": f"only what was before: {_TIME}"},
}
#: parameters of a search in the audit that are compared as they are
_EQUAL = ("language", "outcome", "key_id", "address", "dialect", "request_id")
#: parameters of a search in the audit
AUDIT_QUERY = {
    "tenant": TEXT,
    "session": TEXT,
    **{name: TEXT | {"description": f"as in `{name}` of an execution"} for name in _EQUAL},
    **PERIOD_QUERY,
    "limit": {"type": "integer", "minimum": 1, "description": f"executions in the answer, at most {PAGE_MAX}"},
    "before": {"type": "integer", "minimum": 1, "description": "`next` of the page before"},
}
#: forms of the report of usage
USAGE_FORMATS = ("json", "csv")
#: parameters of the report of usage
USAGE_QUERY = {**PERIOD_QUERY, "format": {"type": "string", "enum": list(USAGE_FORMATS)}}


class CreateKey(Body):
    """A key to make."""

    tenant: str
    role: Role = Field(Role.USER, strict=False)
    name: str = Field("", description="what the key is for: at most 64 printable characters")
    expires_at: str | None = Field(
        None,
        description="date or time as in ISO 8601, in UTC unless it has an offset: from then on the key is refused",
    )
    e2b: bool = Field(False, description="make the key in the form that E2B's SDKs want")  # noqa: FBT003


class KeyInfo(BaseModel):
    """A key without its secret."""

    id: str
    tenant: str
    role: Role
    name: str = Field(description="what it is for; empty: it has no name")
    created_at: datetime
    expires_at: datetime | None = Field(description="null: never")
    expired: bool
    last_used_at: datetime | None = Field(description="null: never, or not since uses are recorded")

    @classmethod
    def of(cls, key: Key) -> Self:
        """Describe a key of the store."""
        return cls(
            id=key.id,
            tenant=key.tenant,
            role=key.role,
            name=key.name,
            created_at=moment(key.created_at),
            expires_at=None if key.expires_at is None else moment(key.expires_at),
            expired=key.expired,
            last_used_at=None if key.used_at is None else moment(key.used_at),
        )


class KeyList(BaseModel):
    """The keys that can be revoked. Keys of the settings are not listed."""

    keys: list[KeyInfo]


class NewKey(KeyInfo):
    """A key that was just made."""

    key: str = Field(description="the secret that authenticates; it is only in this answer")


class ExecutionInfo(BaseModel):
    """An execution: who ran what, and how it ended."""

    seq: int
    execution: str
    tenant: str
    session: str
    language: str
    code_sha256: str
    key_id: str | None = Field(
        None, description="id of the key, `s-…` for one of the settings; null: no key, or not recorded"
    )
    address: str | None = Field(None, description="IP address of the client, or of the proxy before it")
    dialect: str | None = Field(None, description="API that the client used")
    request_id: str | None = Field(None, description="the answer's header X-Request-Id, which is also in the log")
    began_at: datetime
    ended_at: datetime | None = Field(description="null while the execution runs")
    outcome: str | None = Field(
        None,
        description="ok, error, timeout, interrupted, died; refused: by the code policy; unsent: "
        "never ran; unknown: the gateway was killed",
    )
    duration_ms: float | None = None
    error: str | None = Field(None, description="SB code of the failure")
    output_bytes: int | None = None
    memory: int | None = Field(None, description="bytes that the kernel used at the end; null if unknown")

    @classmethod
    def of(cls, account: Account) -> Self:
        """Describe an execution that the audit has recorded."""
        values = asdict(account.begin) | (asdict(account.end) if account.end else {})
        times = {"began_at": account.began_at, "ended_at": account.ended_at}
        return cls.model_validate({"seq": account.seq, "execution": account.execution, **times, **values})


class AuditPage(BaseModel):
    """A page of executions, newest first."""

    executions: list[ExecutionInfo]
    next: int | None = Field(description="value of `before` for the next page; null on the last page")


class UsageHandler(AdminHandler):
    """`/v1/admin/usage`."""

    async def get(self) -> None:
        """Send what each tenant has used within a period, as JSON or CSV."""
        self.refuse_unknown_parameters(USAGE_QUERY)
        form = self.get_query_argument("format", "json")
        if form not in USAGE_FORMATS:
            raise InvalidRequest(f"format must be one of: {', '.join(USAGE_FORMATS)}", field="format")
        since, until = self.time_argument("since"), self.time_argument("until")
        usages = await asyncio.to_thread(usage_of, self.gateway.settings.state_dir.expanduser(), since, until)
        report = UsageReport.of(since, until, usages)
        if form == "json":
            self.finish_json(report.model_dump(mode="json"))
        else:
            self.set_header("Content-Type", "text/csv; charset=utf-8")
            self.set_header("Content-Disposition", 'attachment; filename="usage.csv"')
            self.finish(report.csv())


class KeysHandler(AdminHandler):
    """`/v1/admin/keys`."""

    def get(self) -> None:
        """List the keys."""
        keys = KeyList(keys=[KeyInfo.of(key) for key in self.gateway.keystore.all()])
        self.finish_json(keys.model_dump(mode="json"))

    def post(self) -> None:
        """Make a key. It is valid immediately."""
        body = self.body(CreateKey)
        key, secret = self.gateway.keystore.add(
            body.tenant,
            body.role,
            KeyForm.E2B if body.e2b else KeyForm.OWN,
            name=body.name,
            expires_at=None if body.expires_at is None else seconds_of("expires_at", body.expires_at),
        )
        log.info("a key was made", tenant=key.tenant, key=key.id, role=key.role, name=key.name, by=self.tenant)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/v1/admin/keys/{key.id}")
        self.finish_json(NewKey(key=secret, **KeyInfo.of(key).model_dump()).model_dump(mode="json"))


class KeyHandler(AdminHandler):
    """`/v1/admin/keys/{id}`."""

    def delete(self, key_id: str) -> None:
        """Revoke a key. It is invalid immediately."""
        if not self.gateway.keystore.revoke(key_id):
            raise KeyNotFound(f"there is no key {key_id[:64]!r}")
        log.info("a key was revoked", key=key_id, by=self.tenant)
        self.set_status(HTTPStatus.NO_CONTENT)


class AuditHandler(AdminHandler):
    """`/v1/admin/audit`."""

    async def get(self) -> None:
        """List one page of executions, newest first."""
        self.refuse_unknown_parameters(AUDIT_QUERY)
        most = min(self._number("limit") or PAGE, PAGE_MAX)
        search = Search(
            tenant=self._name("tenant"),
            session=self._name("session"),
            since=self._time("since"),
            until=self._time("until"),
            before=self._number("before"),
            **{name: self.get_query_argument(name, None) for name in _EQUAL},
        )
        # One more execution than the page has shows whether there is a next page.
        found = await asyncio.to_thread(self.gateway.audit.latest, most + 1, search)
        page = AuditPage(
            executions=[ExecutionInfo.of(account) for account in found[:most]],
            next=found[most - 1].seq if len(found) > most else None,
        )
        self.finish_json(page.model_dump(mode="json"))

    def _time(self, name: str) -> float | None:
        seconds = self.time_argument(name)
        # Answers round times to microseconds. A search from a rounded time must find the execution.
        return None if seconds is None else seconds - 1e-6

    def _name(self, name: str) -> str | None:
        value = self.get_query_argument(name, None)
        return None if value is None else valid_name(name, value)

    def _number(self, name: str) -> int | None:
        value = self.get_query_argument(name, None)
        if value is None:
            return None
        if not re.fullmatch("[0-9]{1,15}", value) or not int(value):
            raise InvalidRequest(f"{name} must be a number from 1 on", field=name)
        return int(value)
