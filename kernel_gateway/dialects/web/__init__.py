"""The pages for people, the admin page and the session page: their files, and the feed and answers of the latter."""

from __future__ import annotations

from kernel_gateway.dialects.web import answers, feed, files
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the pages."""
    return [*feed.routes(gateway), *answers.routes(gateway), *files.routes(gateway)]


DIALECT = Dialect("web", routes)
