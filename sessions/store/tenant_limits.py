"""The limits that single tenants have of their own. They outlive the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from sessions.model.errors import InvalidRequest
from sessions.model.tenant_limits import Limit, OwnLimits
from sessions.model.values import valid_name
from sessions.store.database import open_database, saving

_SCHEMA = "CREATE TABLE IF NOT EXISTS limits (tenant TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT"


class TenantLimitStore:
    """The own limits of all tenants. Some are fixed by the gateway's settings; admins set the others.

    Only the gateway uses the database, so it is read once.
    """

    def __init__(
        self,
        path: Path | None = None,
        most: Callable[[str], OwnLimits] = OwnLimits,
        fixed: Mapping[str, OwnLimits] | None = None,
    ) -> None:
        """Open the database.

        Args:
            path: path of the database, which is made if absent. None means in memory.
            most: returns the gateway's limits for a tenant, all of them set.
            fixed: limits that the gateway's settings give to tenants, by tenant. No admin can change these.

        Raises:
            DatabaseUnusable: when the database is damaged, or the disk is full or fails.
        """
        self._database = open_database(path, _SCHEMA)
        self._most = most
        self._fixed = dict(fixed or {})
        rows = self._database.execute("SELECT tenant, content FROM limits")
        #: as admins have set them. One of them may be above the gateway's limit, which was lowered since then.
        self._stored = {tenant: OwnLimits.of(tenant, orjson.loads(content)) for tenant, content in rows}
        self._present = {tenant: self._combined(tenant) for tenant in {*self._stored, *self._fixed}}

    def of(self, tenant: str) -> OwnLimits:
        """Return the limits that a tenant has of its own now."""
        return self._present.get(tenant) or OwnLimits(tenant)

    def most(self, tenant: str) -> OwnLimits:
        """Return the gateway's limits for a tenant, all of them set."""
        return self._most(tenant)

    def fixed(self, tenant: str) -> OwnLimits:
        """Return those limits of a tenant that the gateway's settings fix."""
        return self._fixed.get(tenant) or OwnLimits(tenant)

    def tenants(self) -> set[str]:
        """Return the tenants that have a limit of their own."""
        return {tenant for tenant, own in self._present.items() if own.named()}

    def change(self, tenant: str, changes: Mapping[str, Limit | None]) -> OwnLimits:
        """Change limits of a tenant. New sessions and cells get them; what runs already keeps what it has.

        Args:
            tenant: name of the tenant.
            changes: new value of each limit to change. None means the gateway's limit again.

        Returns:
            the limits that the tenant has of its own now.

        Raises:
            InvalidRequest: when the name is not allowed, or a limit is fixed or would be above the gateway's.
            LedgerUnavailable: when the limits cannot be saved; then nothing has changed.
        """
        most, fixed = self._most(valid_name("tenant", tenant)), self.fixed(tenant).named()
        for name, value in changes.items():
            if name in fixed:
                raise InvalidRequest(
                    f"the gateway's settings fix the limit {name} of tenant {tenant!r}: only `tenants.{tenant}.{name}` "
                    "there can change it",
                    field=name,
                )
            if value is not None:
                most.require(name, value)
        values: dict[str, Any] = dict(changes)
        new = replace(self._stored.get(tenant, OwnLimits(tenant)), **values)
        self._save(new)
        self._stored[tenant] = new
        self._present[tenant] = self._combined(tenant)
        return self.of(tenant)

    def _save(self, own: OwnLimits) -> None:
        with saving("the limits"):
            if content := own.as_json():
                values = [own.tenant, orjson.dumps(content)]
                self._database.execute("INSERT OR REPLACE INTO limits VALUES (?, ?)", values)
            else:
                delete = "DELETE FROM limits WHERE tenant = ?"
                self._database.run_deletion(lambda: self._database.execute(delete, [own.tenant]))

    def _combined(self, tenant: str) -> OwnLimits:
        fixed: dict[str, Any] = self.fixed(tenant).named()
        stored = self._stored.get(tenant, OwnLimits(tenant)).within(self._most(tenant))
        return replace(stored, **fixed)

    def close(self) -> None:
        """Close the database."""
        self._database.close()
