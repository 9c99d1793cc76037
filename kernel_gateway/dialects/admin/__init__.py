"""Provider administration, in two forms: the specification's, and RAGFlow's own."""

from __future__ import annotations

from kernel_gateway.dialects.admin import ragflow, specified
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of both forms."""
    return [(path, handler, {"gateway": gateway}) for path, handler in (*specified.ROUTES, *ragflow.ROUTES)]


DIALECT = Dialect("admin", routes)
