"""API to administer providers, in two forms: that of RAGFlow's specification, and that of RAGFlow's own server."""

from __future__ import annotations

from kernel_gateway.dialects.admin import ragflow, specification
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of both forms."""
    return [(path, handler, {"gateway": gateway}) for path, handler in (*specification.ROUTES, *ragflow.ROUTES)]


DIALECT = Dialect("admin", routes)
