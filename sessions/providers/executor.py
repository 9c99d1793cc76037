"""A runner that sends programs to another gateway or to RAGFlow's own executor.

Source: the `POST /run` and `GET /healthz` of RAGFlow's executor manager, as its clients use them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    ExecutionTimeout,
    InvalidRequest,
    NotInitialized,
    OutOfMemory,
    QuotaExceeded,
    SessionError,
    of_code,
)
from sessions.programs.program import Artifact, Ending, Outcome, Program, Returned
from sessions.providers.forwarding import FORWARDED, LANGUAGES
from sessions.providers.results import timed_out
from sessions.providers.wrapping import parse_json

#: seconds to make a connection, to answer a health check, and to transfer an answer in addition to the run time
CONNECT, HEALTH, TRANSFER = 5.0, 5.0, 3.0
#: bytes of an answer: as base64, artifacts have 43 MiB at most
ANSWER_MAX = 64 * 1024**2
#: seconds before the first retry; the pause doubles with each further retry
PAUSE = 0.2

#: `detail` of an answer when a policy has refused the program
UNSAFE = "Code is unsafe"
#: error for each `detail` of an answer about a program that was not run, or whose outcome is unknown
REFUSALS: Mapping[str, tuple[type[SessionError], str]] = {
    "no_available_container": (BackendUnavailable, "All of the endpoint's containers are in use."),
    "internal_error": (BackendUnavailable, "The endpoint failed; the program's outcome is not known."),
    "unhandled_exception": (BackendUnavailable, "The endpoint failed; the program's outcome is not known."),
    "Too many requests, please try again later": (QuotaExceeded, "The endpoint accepts no more requests at present."),
}
LIMITS: Mapping[str, tuple[Ending, type[SessionError]]] = {
    "time": (Ending.TIMEOUT, ExecutionTimeout),
    "memory": (Ending.OUT_OF_MEMORY, OutOfMemory),
}


class Executor:
    """Runs programs at the endpoint. A `Runner`; the API key determines the tenant there."""

    def __init__(self, endpoint: str, api_key: str, max_retries: int) -> None:
        """Keep the parameters; the first request makes the first connection.

        Args:
            endpoint: URL of the service.
            api_key: bearer token. Empty means that no token is sent.
            max_retries: number of retries after a connection could not be made.
        """
        self._retries = max_retries
        self._client = httpx.AsyncClient(
            base_url=endpoint.rstrip("/"),
            headers={FORWARDED: "1", "Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            timeout=httpx.Timeout(HEALTH, connect=CONNECT),
            trust_env=False,  # only settings say where programs and keys go
        )

    async def healthy(self) -> bool:
        """Return True if the endpoint reports that it is healthy."""
        try:
            async with self._client.stream("GET", "/healthz") as response:
                return response.status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def run(self, tenant: str, program: Program) -> Outcome:  # noqa: ARG002 - the endpoint has its own tenants
        """Run a program to its end.

        Raises:
            SessionError: when the program was not run, or its outcome is not known.
        """
        seconds = program.timeout or HEALTH
        body = {
            "code_b64": base64.b64encode(program.code.encode()).decode(),
            "language": LANGUAGES[program.language],
            "arguments": dict(program.arguments),
            "timeout": seconds,  # not of RAGFlow's protocol: its executor has one limit and ignores this
        }
        began = time.monotonic()
        try:
            status, content = await self._post(body, seconds)
        except httpx.TimeoutException:
            late = "No answer arrived in time; it is not known whether the program has ended.\n"
            return timed_out("", late, time.monotonic() - began)
        return _outcome(_answer(status, content), time.monotonic() - began)

    async def _post(self, body: Mapping[str, Any], seconds: float) -> tuple[int, bytes]:
        """Send a program so that it runs once at most: retry only if the request cannot have arrived.

        Returns:
            status and body of the answer; the body is read only of an answer about a program that was run.
        """
        timeout = httpx.Timeout(seconds + TRANSFER, connect=CONNECT)
        for attempt in range(self._retries + 1):
            try:
                async with self._client.stream("POST", "/run", json=body, timeout=timeout) as response:
                    ran = response.status_code == httpx.codes.OK
                    return response.status_code, await _content(response) if ran else b""
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if attempt < self._retries:
                    await asyncio.sleep(PAUSE * 2**attempt)
            except httpx.TimeoutException:
                raise
            except httpx.HTTPError as error:
                kind = type(error).__name__  # its text may contain the URL with a password
                broken = f"The connection broke ({kind}); the program's outcome is not known."
                raise ConnectionFailed(broken) from None
        raise ConnectionFailed("The endpoint cannot be reached; nothing was run.")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def _content(response: httpx.Response) -> bytes:
    """Return the body of an answer. A compressed body is refused: a few bytes could become any number of bytes.

    Raises:
        ConnectionFailed: when the body is compressed or too large.
    """
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ConnectionFailed("The endpoint's answer is compressed; the program's outcome is not known.")
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > ANSWER_MAX:
            raise ConnectionFailed(f"The answer has more than {ANSWER_MAX} bytes; the program's outcome is not known.")
    return bytes(content)


def _answer(status: int, content: bytes) -> dict[str, Any]:
    """Return the body of an answer about a program that was run.

    Raises:
        SessionError: when the program was not run.
    """
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise NotInitialized("The endpoint does not accept the API key.", status=status)
    if status == httpx.codes.TOO_MANY_REQUESTS:
        raise QuotaExceeded("The endpoint accepts no more requests at present.", status=status)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise BackendUnavailable(f"The endpoint answers with HTTP {status}.", status=status)
    if status != httpx.codes.OK:
        raise InvalidRequest(f"The endpoint refuses the program with HTTP {status}.", status=status)
    try:
        body = parse_json(content)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("status"), str):
        raise ConnectionFailed("The server at the endpoint is not an executor.")
    if refusal := REFUSALS.get(str(body.get("detail"))):
        kind, why = refusal
        raise of_code(body.get("error_code")) or kind(why)
    return body


def _outcome(body: Mapping[str, Any], seconds: float) -> Outcome:
    limit, told, code = LIMITS.get(str(body.get("resource_limit_type"))), body.get("result"), body.get("exit_code")
    ending = limit[0] if limit else Ending.OK if body["status"] == "success" else Ending.ERROR
    return Outcome(
        ending,
        str(body.get("stdout") or ""),
        str(body.get("stderr") or ""),
        code if isinstance(code, int) else 1,
        Returned(told.get("value")) if isinstance(told, dict) and told.get("present") else None,
        tuple(_artifacts(body.get("artifacts"))),
        duration=seconds,
        error=limit[1]() if limit else of_code("SB007" if body.get("detail") == UNSAFE else body.get("error_code")),
    )


def _artifacts(listed: object) -> Iterator[Artifact]:
    try:
        for each in listed if isinstance(listed, list) else []:
            content = base64.b64decode(each["content_b64"], validate=True)
            yield Artifact(str(each["name"]), str(each["mime_type"]), content)
    except (TypeError, KeyError, binascii.Error):
        raise ConnectionFailed("The endpoint's answer has artifacts that cannot be read.") from None
