"""The access log: one line for each request."""

from __future__ import annotations

from dataclasses import asdict

import structlog

from kernel_gateway.http.handlers import BaseHandler

log = structlog.get_logger()

#: paths that monitoring requests every few seconds; their lines would hide the others
PROBES = {"/healthz", "/readyz", "/metrics"}


def request_ended(handler: BaseHandler) -> None:
    """Log a request. The line has the path but not the query, which may contain a credential."""
    request = handler.request
    if request.path in PROBES:
        return
    log.info(
        "request",
        method=request.method,
        path=handler.logged_path,
        status=int(handler.get_status()),
        duration_ms=round(request.request_time() * 1000, 1),
        tenant=getattr(handler, "tenant", None),
        **asdict(handler.asker),
    )
