"""Translation of the answers and errors of E2B's SDK into our own types.

Source: `e2b-code-interpreter` 2.11.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    NotInitialized,
    QuotaExceeded,
    SandboxNotFound,
    SessionError,
)
from sessions.programs.program import Artifact, Ending, Outcome
from sessions.providers.results import ended, without_colours
from sessions.providers.wrapping import Wrapped

T = TypeVar("T")

#: HTTP status of the service for an unknown sandbox or template
NOT_FOUND = 404

#: MIME types of displayed results that become artifacts, by their names in the SDK
IMAGES: Mapping[str, str] = {"png": "image/png", "jpeg": "image/jpeg", "svg": "image/svg+xml", "pdf": "application/pdf"}
#: error for each exception of the SDK, the most specific first
FAILURES: tuple[tuple[str, type[SessionError], str], ...] = (
    ("AuthenticationException", NotInitialized, "The service does not accept the API key."),
    ("RateLimitException", QuotaExceeded, "The service accepts no more requests at present."),
    ("NotFoundException", SandboxNotFound, "The service does not know the sandbox or its template."),
    ("InvalidArgumentException", InvalidRequest, "The service refuses the request."),
    ("ServiceBusyException", BackendUnavailable, "The service is busy."),
    ("TimeoutException", ConnectionFailed, "The service does not answer in time."),
    ("SandboxException", ConnectionFailed, "The service does not answer as it should."),
)


def load() -> ModuleType:
    """Load the SDK, which other providers do not need.

    Raises:
        NotInitialized: when the SDK is not installed.
    """
    try:
        return importlib.import_module("e2b_code_interpreter")
    except ImportError:
        why = "The E2B SDK is not installed: pip install 'sandboxed-kernel-gateway[e2b]'."
        raise NotInitialized(why, extra="e2b") from None


async def call_sdk(sdk: ModuleType, call: Awaitable[T]) -> T:
    """Await a call of the SDK and return its answer.

    Raises:
        SessionError: when the service does not answer, or refuses. The error has no text of the service, which may
            contain keys.
    """
    import httpx  # noqa: PLC0415 - the SDK has loaded httpx; other providers start without it

    try:
        return await call
    except (sdk.SandboxException, sdk.AuthenticationException, sdk.ServiceBusyException) as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if getattr(error, "status_code", None) == NOT_FOUND:
            kinds.add("NotFoundException")
        raise next(kind(why) for name, kind, why in FAILURES if name in kinds) from None
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise ConnectionFailed(f"The service does not answer as it should ({type(error).__name__}).") from None


def outcome(program: Wrapped | None, execution: Any, seconds: float) -> Outcome:
    """Return the outcome of a program. `program` is None for a script, which has no runner."""
    stdout, stderr = "".join(execution.logs.stdout), "".join(execution.logs.stderr)
    error = execution.error
    answer = program.read(stdout) if program else None
    if answer is not None:
        done = ended(answer, stdout, stderr, seconds)
        return done if done.exit_code else replace(done, artifacts=tuple(_images(execution.results)))
    if error is not None:
        trace = without_colours(error.traceback or f"{error.name}: {error.value}")
        return Outcome(Ending.ERROR, stdout, f"{stderr}{trace}\n", 1, duration=seconds)
    if program is None:
        return Outcome(Ending.OK, stdout, stderr, 0, duration=seconds)
    return ended(None, stdout, stderr, seconds)


def _images(results: list[Any]) -> Iterator[Artifact]:
    """Yield the displayed results that become artifacts."""
    for number, result in enumerate(results, 1):
        for form, kind in IMAGES.items():
            if isinstance(data := getattr(result, form, None), str):
                yield Artifact(f"result-{number}.{form}", kind, _content(form, data))


def _content(form: str, data: str) -> bytes:
    """Decode an image. SVG arrives as text, every other format as base64."""
    try:
        return data.encode() if form == "svg" else base64.b64decode(data.replace("\n", ""), validate=True)
    except binascii.Error:
        raise ConnectionFailed("The service has sent an image that cannot be read.") from None
