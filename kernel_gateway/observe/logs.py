"""Structured logs: JSON lines on stderr, readable lines on a terminal. They contain no code, keys or query strings."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import MutableSequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import TextIO, cast

import structlog

from kernel_gateway.observe.log_limits import LineLimit
from sessions.model.egress import EgressRequest
from sessions.model.errors import PolicyViolation
from sessions.model.values import Asker, ExecuteRequest, ExecutionEnd, SessionKey

log = structlog.get_logger()

#: maximum characters of a line that `collect_warnings` stores
_KEPT_MAX = 1000
#: decides which lines are written
limit = LineLimit(time.monotonic)

#: tracebacks without the values of local variables, because those include code and keys
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


class StandardError:
    """The stream of the log. It ignores a full disk and loses the lines, so that the logged work does not fail."""

    def write(self, text: str) -> None:
        """Write the text, if possible."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush the stream, if possible."""
        with suppress(OSError):
            sys.stderr.flush()


def collect_warnings(lines: MutableSequence[str]) -> None:
    """Append the gateway's own warnings and errors to `lines` instead of writing them."""

    def kept(_logger: object, _method: str, record: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event = record.pop("event")
        lines.append("; ".join([str(event), *(f"{name}: {value}" for name, value in record.items())])[:_KEPT_MAX])
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.processors.format_exc_info, kept],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


def set_up() -> None:
    """Configure structlog and the standard library's logging to write one common format."""
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
        processors=[*shared[:2], limit, *shared[2:], *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", StandardError())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(limit)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # urllib3 raises the same errors that it logs
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # so does mcp, and its lines have what servers answer


def bind_asker(asker: Asker) -> None:
    """Write who asks into all lines of the current task, and of the tasks that it begins."""
    structlog.contextvars.bind_contextvars(**asdict(asker))


def asker() -> Asker:
    """Return who asks for the work of the current task."""
    told = structlog.contextvars.get_contextvars()
    return Asker(**{field.name: told.get(field.name) for field in fields(Asker)})


def execution_ended(
    key: SessionKey, execution: str, request: ExecuteRequest, end: ExecutionEnd, asked_by: Asker
) -> None:
    """Log the end of a cell in one line. A digest identifies the code without revealing it.

    Args:
        key: key of the session.
        execution: id of the execution in the audit.
        request: the execute request.
        end: how the execution ended.
        asked_by: who asked for the cell.
    """
    log.info(
        "execution",
        **asdict(asked_by),
        execution=execution,
        tenant=key.tenant,
        session=key.name,
        code_sha256=hashlib.sha256(request.client_code.encode("utf-8", "surrogatepass")).hexdigest(),
        status=end.status.value,
        state=end.state.value,
        code=end.error.code if end.error else None,
        duration_ms=round(end.duration * 1000, 1),
        truncated=end.truncated,
    )


def egress(request: EgressRequest) -> None:
    """Log a session's request to the egress proxy in one line, when the request has ended."""
    log.info("egress", **asdict(request))


def execution_refused(key: SessionKey, execution: str, violation: PolicyViolation) -> None:
    """Log a cell that the code policy forbids, in one line.

    The line has only the number of problems, because their texts contain code.

    Args:
        key: key of the session.
        execution: id of the execution in the audit.
        violation: the refusal.
    """
    log.info(
        "execution refused",
        **asdict(asker()),
        execution=execution,
        tenant=key.tenant,
        session=key.name,
        code=violation.code,
        profile=violation.details["profile"],
        problems=len(violation.details["problems"]),
    )
