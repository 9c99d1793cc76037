"""The admin API's removal of a tenant."""

from __future__ import annotations

import structlog
from pydantic import BaseModel

from kernel_gateway.http.admin_handler import AdminHandler
from sessions.model.errors import InvalidRequest
from sessions.model.tasks import gather_all
from sessions.model.tenant_limits import SETTINGS
from sessions.model.values import valid_name

log = structlog.get_logger()


class RemovedTenant(BaseModel):
    """What a tenant had, and has no more."""

    keys: int
    sessions: int
    sandboxes: int
    templates: int
    files: int


class TenantHandler(AdminHandler):
    """`/v1/admin/tenants/{tenant}`."""

    async def delete(self, tenant: str) -> None:
        """Revoke the tenant's keys, end its sessions and sandboxes with their files, and delete all else of it.

        What the tenant has run stays in the audit and in the usage.
        """
        gateway, tenant = self.gateway, valid_name("tenant", tenant)
        if tenant in gateway.keys.fixed_tenants() or gateway.tenant_limits.fixed(tenant).named():
            raise InvalidRequest(
                f"the gateway's settings name tenant {tenant!r}: remove its keys and limits there first", field="tenant"
            )
        if tenant == self.tenant:
            raise InvalidRequest("an admin cannot remove the tenant of the admin's own key", field="tenant")
        keys = [key.id for key in gateway.keystore.all() if key.tenant == tenant]
        for key_id in keys:
            gateway.keystore.revoke(key_id)
        reason = "the tenant was removed by an admin"
        sandboxes = [sandbox.key for sandbox in gateway.sandboxes.of(tenant)]
        freed = [gateway.sandboxes.end(key, reason) for key in sandboxes]
        sessions = [session.key for session in gateway.registry.all() if session.key.tenant == tenant]
        freed += [gateway.registry.end(key, reason) for key in sessions]
        removed = RemovedTenant(
            keys=len(keys),
            sessions=len(sessions),
            sandboxes=len(sandboxes),
            templates=gateway.templates.delete_all(tenant),
            files=gateway.file_store.delete_all(tenant),
        )
        gateway.tenant_limits.change(tenant, dict.fromkeys(SETTINGS))
        await gateway.sandboxes.snapshots.delete_all(tenant)
        log.info("a tenant was removed", tenant=tenant, by=self.tenant, **removed.model_dump())
        await gather_all(*freed)
        self.finish_json(removed.model_dump(mode="json"))
