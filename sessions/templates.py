"""Templates: how a tenant's sandboxes are made. They outlive the gateway."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from sessions.errors import InvalidRequest, QuotaExceeded, SessionExists, TemplateNotFound
from sessions.models import valid_name

#: templates of one tenant
PER_TENANT = 200
#: bytes of one
SIZE_MAX = 64 * 1024
#: the one that is always there
DEFAULT = "code-interpreter-v1"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS templates (
    tenant TEXT NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL, content BLOB NOT NULL,
    created REAL NOT NULL, updated REAL NOT NULL, PRIMARY KEY (tenant, name)
) STRICT
"""

_SELECT = "SELECT name, id, content, created, updated FROM templates WHERE tenant = ?"


@dataclass(frozen=True, slots=True)
class Template:
    """What a tenant has written down of its sandboxes."""

    name: str
    id: str
    #: JSON, as its dialect has it
    content: Mapping[str, Any]
    #: seconds since 1970
    created_at: float
    updated_at: float


class Templates:
    """The templates of all tenants."""

    def __init__(self, path: Path) -> None:
        """Open them.

        Args:
            path: the database; made if absent.
        """
        # Few, small and rarely written: no threads are needed for them.
        self._database = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(_SCHEMA)
        self._default = Template(DEFAULT, str(uuid.uuid5(uuid.NAMESPACE_OID, DEFAULT)), {}, time.time(), time.time())

    def of(self, tenant: str) -> list[Template]:
        """A tenant's templates, oldest first, after the one that is always there."""
        rows = self._database.execute(f"{_SELECT} ORDER BY created, name", [tenant])
        return [self._default, *(_template(row) for row in rows)]

    def get(self, tenant: str, name: str) -> Template:
        """One template.

        Raises:
            TemplateNotFound: the tenant has none of this name.
        """
        if name == DEFAULT:
            return self._default
        row = self._database.execute(f"{_SELECT} AND name = ?", [tenant, name]).fetchone()
        if row is not None:
            return _template(row)
        raise TemplateNotFound(f"there is no template {name[:64]!r}", template=name[:64])

    def create(self, tenant: str, name: str, content: Mapping[str, Any]) -> Template:
        """Keep a new template.

        Raises:
            InvalidRequest: the name is not allowed, or the content is too large.
            SessionExists: there is one of this name.
            QuotaExceeded: the tenant has as many as it may.
        """
        valid_name("templateName", name)
        present = self.of(tenant)
        if any(template.name == name for template in present):
            raise SessionExists(f"a template {name!r} exists already", template=name)
        if len(present) > PER_TENANT:
            raise QuotaExceeded(f"at most {PER_TENANT} templates", limit="templates", max=PER_TENANT)
        now = time.time()
        template = Template(name, str(uuid.uuid4()), content, now, now)
        self._database.execute(
            "INSERT INTO templates VALUES (?, ?, ?, ?, ?, ?)", [tenant, name, template.id, _encoded(content), now, now]
        )
        return template

    def update(self, tenant: str, name: str, content: Mapping[str, Any]) -> Template:
        """Replace a template's content.

        Raises:
            InvalidRequest: it is the one that is always there, or the content is too large.
            TemplateNotFound: the tenant has none of this name.
        """
        template = replace(self._own(tenant, name), content=content, updated_at=time.time())
        self._database.execute(
            "UPDATE templates SET content = ?, updated = ? WHERE tenant = ? AND name = ?",
            [_encoded(content), template.updated_at, tenant, name],
        )
        return template

    def delete(self, tenant: str, name: str) -> Template:
        """Keep a template no longer; sandboxes made from it go on.

        Returns:
            it, as it was.

        Raises:
            InvalidRequest: it is the one that is always there.
            TemplateNotFound: the tenant has none of this name.
        """
        template = self._own(tenant, name)
        self._database.execute("DELETE FROM templates WHERE tenant = ? AND name = ?", [tenant, name])
        return template

    def _own(self, tenant: str, name: str) -> Template:
        if (template := self.get(tenant, name)) is self._default:
            raise InvalidRequest(f"template {name!r} cannot be changed; make one of your own", field="templateName")
        return template

    def close(self) -> None:
        """Free the database."""
        self._database.close()


def _template(row: tuple[str, str, bytes, float, float]) -> Template:
    name, template_id, content, created, updated = row
    return Template(name, template_id, orjson.loads(content), created, updated)


def _encoded(content: Mapping[str, Any]) -> bytes:
    encoded = orjson.dumps(dict(content))
    if len(encoded) > SIZE_MAX:
        raise InvalidRequest(f"a template may have {SIZE_MAX} bytes", field="body")
    return encoded
