"""Templates, which are stored settings for a tenant's sandboxes. They outlive the gateway."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from sessions.model import exact_json
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionExists, TemplateNotFound
from sessions.model.values import valid_name
from sessions.store.database import open_database, saving

#: maximum templates of one tenant
PER_TENANT = 200
#: maximum bytes of one template
SIZE_MAX = 64 * 1024

_SCHEMA = """
CREATE TABLE IF NOT EXISTS templates (
    tenant TEXT NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL, content BLOB NOT NULL,
    created REAL NOT NULL, updated REAL NOT NULL, PRIMARY KEY (tenant, name)
) STRICT
"""

_SELECT = "SELECT name, id, content, created, updated FROM templates WHERE tenant = ?"


@dataclass(frozen=True, slots=True)
class Template:
    """Settings that a tenant has stored for its sandboxes."""

    name: str
    id: str
    #: JSON in the form of its dialect
    content: Mapping[str, Any]
    #: seconds since 1970
    created_at: float
    updated_at: float


class Templates:
    """The templates of all tenants."""

    def __init__(self, path: Path, default: str) -> None:
        """Open the database.

        Args:
            path: path of the database. It is made if absent.
            default: name of the template that every tenant has, and that no tenant can change.
        """
        self._database = open_database(path, _SCHEMA)
        default_id = str(uuid.uuid5(uuid.NAMESPACE_OID, default))
        self._default = Template(default, default_id, {}, time.time(), time.time())

    def of(self, tenant: str) -> list[Template]:
        """Return a tenant's templates: the default one, then the others, oldest first."""
        rows = self._database.execute(f"{_SELECT} ORDER BY created, name", [tenant])
        return [self._default, *(_template(row) for row in rows)]

    def get(self, tenant: str, name: str) -> Template:
        """Return one template.

        Raises:
            TemplateNotFound: when the tenant has no template of this name.
        """
        if name == self._default.name:
            return self._default
        row = self._database.execute(f"{_SELECT} AND name = ?", [tenant, name]).fetchone()
        if row is not None:
            return _template(row)
        raise TemplateNotFound(f"there is no template {name[:64]!r}", template=name[:64])

    def create(self, tenant: str, name: str, content: Mapping[str, Any]) -> Template:
        """Store a new template.

        Raises:
            InvalidRequest: when the name is not allowed, or the content is too large.
            SessionExists: when a template of this name exists.
            QuotaExceeded: when the tenant has the maximum number of templates.
            LedgerUnavailable: when the template cannot be saved.
        """
        valid_name("template", name)
        present = self.of(tenant)
        if any(template.name == name for template in present):
            raise SessionExists(f"a template {name!r} exists already", template=name)
        if len(present) > PER_TENANT:
            raise QuotaExceeded(f"at most {PER_TENANT} templates", limit="templates", max=PER_TENANT)
        now = time.time()
        template = Template(name, str(uuid.uuid4()), content, now, now)
        values = [tenant, name, template.id, _encoded(content), now, now]
        with saving("the template"):
            self._database.execute("INSERT INTO templates VALUES (?, ?, ?, ?, ?, ?)", values)
        return template

    def update(self, tenant: str, name: str, content: Mapping[str, Any]) -> Template:
        """Replace a template's content.

        Raises:
            InvalidRequest: when it is the default template, or the content is too large.
            TemplateNotFound: when the tenant has no template of this name.
            LedgerUnavailable: when the template cannot be saved.
        """
        template = self._own(tenant, name)
        now = max(template.created_at, time.time())  # the machine's clock may have been set back
        values = [_encoded(content), now, tenant, name]
        with saving("the template"):
            self._database.execute(
                "UPDATE templates SET content = ?, updated = ? WHERE tenant = ? AND name = ?", values
            )
        return replace(template, content=content, updated_at=now)

    def delete(self, tenant: str, name: str) -> Template:
        """Delete a template, also on a full disk. Sandboxes that were made from it still run.

        Returns:
            the deleted template.

        Raises:
            InvalidRequest: when it is the default template.
            TemplateNotFound: when the tenant has no template of this name.
            LedgerUnavailable: when the deletion cannot be saved.
        """
        template = self._own(tenant, name)
        statement = "DELETE FROM templates WHERE tenant = ? AND name = ?"
        with saving("the deletion"):
            self._database.run_deletion(lambda: self._database.execute(statement, [tenant, name]))
        return template

    def delete_all(self, tenant: str) -> int:
        """Delete all templates of a tenant, even if the disk is full.

        Returns:
            the number of deleted templates.

        Raises:
            LedgerUnavailable: when the deletion cannot be saved.
        """
        statement = "DELETE FROM templates WHERE tenant = ?"
        with saving("the deletion"):
            deleted = self._database.run_deletion(lambda: self._database.execute(statement, [tenant]))
        return int(deleted.rowcount)

    def _own(self, tenant: str, name: str) -> Template:
        if (template := self.get(tenant, name)) is self._default:
            raise InvalidRequest(f"template {name!r} cannot be changed; create your own", field="template")
        return template

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _template(row: tuple[str, str, bytes, float, float]) -> Template:
    name, template_id, content, created, updated = row
    return Template(name, template_id, exact_json.parse(content), created, updated)


def _encoded(content: Mapping[str, Any]) -> bytes:
    try:
        encoded = exact_json.dumps(dict(content))
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"the template cannot be kept: {error}", field="body") from None
    if len(encoded) > SIZE_MAX:
        raise InvalidRequest(f"a template may have at most {SIZE_MAX} bytes", field="body")
    return encoded
