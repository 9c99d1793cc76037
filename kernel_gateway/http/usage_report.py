"""The report of what tenants have used, as JSON and as CSV, for the admin API and the command."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import datetime
from typing import Self

from pydantic import BaseModel, Field

from kernel_gateway.times import moment
from sessions.model.errors import InvalidRequest
from sessions.store.usage_store import TenantUsage

_GIB_HOUR = 1024**3 * 3600


class UsageRow(BaseModel):
    """What one tenant has used within the period."""

    tenant: str
    cells: int = Field(description="cells and commands that have ended, except those that were never run")
    cell_seconds: float = Field(description="seconds that these cells took")
    output_bytes: int = Field(description="bytes of their output, including bytes that were left out")
    memory_gib_hours: float = Field(description="memory that its kernels could use, however much they used of it")
    disk_gib_hours: float = Field(
        description="disk that its workspaces could take, and that its sleeping sessions and checkpoints took"
    )

    @classmethod
    def of(cls, usage: TenantUsage) -> Self:
        """Describe the use of one tenant."""
        return cls(
            tenant=usage.tenant,
            cells=usage.cells,
            cell_seconds=round(usage.cell_seconds, 3),
            output_bytes=usage.output_bytes,
            memory_gib_hours=round(usage.memory_byte_seconds / _GIB_HOUR, 6),
            disk_gib_hours=round(usage.disk_byte_seconds / _GIB_HOUR, 6),
        )


class UsageReport(BaseModel):
    """What each tenant has used within a period."""

    since: datetime | None = Field(description="null: the first record")
    until: datetime | None = Field(description="not part of the period; null: now")
    tenants: list[UsageRow]

    @classmethod
    def of(cls, since: float | None, until: float | None, usages: Iterable[TenantUsage]) -> Self:
        """Make the report.

        Args:
            since: begin of the period, in seconds since 1970. None means the first record.
            until: end of the period. None means now.
            usages: use of each tenant.

        Raises:
            InvalidRequest: when the period ends before it begins.
        """
        if since is not None and until is not None and until <= since:
            raise InvalidRequest("until must be later than since", field="until")
        return cls(
            since=None if since is None else moment(since),
            until=None if until is None else moment(until),
            tenants=[UsageRow.of(usage) for usage in usages],
        )

    def csv(self) -> str:
        """Return the tenants as lines of CSV, below a line with the names of the columns. Source: RFC 4180."""
        lines = io.StringIO()
        table = csv.DictWriter(lines, UsageRow.model_fields)
        table.writeheader()
        table.writerows(row.model_dump() for row in self.tenants)
        return lines.getvalue()
