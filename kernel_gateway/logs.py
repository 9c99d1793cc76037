"""Structured logs: JSON lines on stderr, readable ones on a terminal. Code, keys and query strings are not in them."""

from __future__ import annotations

import hashlib
import logging
import sys

import structlog
from tornado.web import RequestHandler

from sessions.models import ExecuteRequest, ExecutionResult, SessionKey

log = structlog.get_logger()

#: asked every few seconds by whoever watches the gateway; they would drown the rest
PROBES = {"/healthz", "/readyz", "/metrics"}


#: without the values of local variables, among which are code and keys
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def set_up() -> None:
    """Route structlog's and the libraries' records through one format."""
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if sys.stderr.isatty()
        else [_tracebacks, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it also raises what it says of an engine that breaks off


def request_ended(handler: RequestHandler) -> None:
    """The access log; called by tornado. The path without its query, which may hold a credential."""
    request = handler.request
    if request.path in PROBES:
        return
    log.info(
        "request",
        method=request.method,
        path=request.path,
        status=handler.get_status(),
        duration_ms=round(request.request_time() * 1000, 1),
        tenant=getattr(handler, "tenant", None),
        request_id=getattr(handler, "request_id", None),
    )


def execution_ended(key: SessionKey, request: ExecuteRequest, result: ExecutionResult) -> None:
    """One line per cell: which code it was can be checked by its digest, what it was cannot be read."""
    log.info(
        "execution",
        tenant=key.tenant,
        session=key.name,
        code_sha256=hashlib.sha256(request.code.encode("utf-8", "surrogatepass")).hexdigest(),
        status=result.status.value,
        state=result.state.value,
        code=result.error.code if result.error else None,
        duration_ms=round(result.duration * 1000, 1),
        truncated=result.truncated,
    )
