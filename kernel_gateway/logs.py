"""Structured logs: JSON lines on stderr, readable ones on a terminal. Code, keys and query strings are not in them."""

from __future__ import annotations

import hashlib
import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

from kernel_gateway.handlers import BaseHandler
from sessions.errors import PolicyViolation
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey

log = structlog.get_logger()

#: asked every few seconds by whoever watches the gateway; they would drown the rest
PROBES = {"/healthz", "/readyz", "/metrics"}


#: without the values of local variables, among which are code and keys
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


class StandardError:
    """Where the log goes. When its disk is full it is cut short: what is told must not fail of being told."""

    def write(self, text: str) -> None:
        """Write, if that is possible."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Hand it on, if that is possible."""
        with suppress(OSError):
            sys.stderr.flush()


def set_up() -> None:
    """Route structlog's and the libraries' records through one format."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
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
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", StandardError())),
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


def request_id() -> str | None:
    """The request that this is done for."""
    told: str | None = structlog.contextvars.get_contextvars().get("request_id")
    return told


def request_ended(handler: BaseHandler) -> None:
    """The access log. The path without its query, which may hold a credential."""
    request = handler.request
    if request.path in PROBES:
        return
    log.info(
        "request",
        method=request.method,
        path=request.path,
        status=handler.get_status(),
        duration_ms=round(request.request_time() * 1000, 1),
        dialect=handler.dialect,
        tenant=getattr(handler, "tenant", None),
        request_id=handler.request_id,
    )


def execution_ended(
    key: SessionKey, execution: str, request: ExecuteRequest, result: ExecutionResult, asked_by: str | None
) -> None:
    """One line per cell: which code it was can be checked by its digest, what it was cannot be read.

    Args:
        key: its session.
        execution: what it is called in the audit.
        request: what was asked for.
        result: how it ended.
        asked_by: the id of the request.
    """
    log.info(
        "execution",
        request_id=asked_by,
        execution=execution,
        tenant=key.tenant,
        session=key.name,
        code_sha256=hashlib.sha256(request.written.encode("utf-8", "surrogatepass")).hexdigest(),
        status=result.status.value,
        state=result.state.value,
        code=result.error.code if result.error else None,
        duration_ms=round(result.duration * 1000, 1),
        truncated=result.truncated,
    )


def execution_refused(key: SessionKey, execution: str, violation: PolicyViolation) -> None:
    """One line per cell that the code policy forbids. What it has found are pieces of the code.

    Args:
        key: its session.
        execution: what it is called in the audit.
        violation: why.
    """
    log.info(
        "execution refused",
        request_id=request_id(),
        execution=execution,
        tenant=key.tenant,
        session=key.name,
        code=violation.code,
        profile=violation.details["profile"],
        problems=len(violation.details["problems"]),
    )
