"""AgentRun's data plane, through its own SDK: make sandboxes, send requests to them and delete them.

Source: `agentrun-sdk` 0.0.54. Its control plane, at another endpoint, is not needed. Releases of the SDK differ in the
errors that they raise and in the errors that they return as an answer, so this module checks both.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Mapping
from types import ModuleType
from typing import Any, TypeVar

import structlog

from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    NotInitialized,
    QuotaExceeded,
    SandboxNotFound,
    SessionError,
    StartFailed,
)
from sessions.programs.program import Ending, Outcome
from sessions.providers.base import Config
from sessions.providers.results import ended, timed_out, without_colours
from sessions.providers.wrapping import Wrapped

log = structlog.get_logger()
T = TypeVar("T")

#: seconds: the service's limit for a program; the time to transfer an answer, in addition to the program's run time;
#: the time to start a sandbox
LONGEST, TRANSFER, START = 30, 10.0, 60.0
#: seconds without a program after which the service ends a forgotten sandbox
IDLE = 300
#: seconds for the answer to a health check or to a deletion
CALL = 20.0
#: id of no sandbox: a service that answers "not found" has accepted the access key
NO_SANDBOX = "no-such-sandbox"
#: error for each HTTP status of the service
FAILURES: Mapping[int, tuple[type[SessionError], str]] = {
    400: (InvalidRequest, "The service refuses the request."),
    401: (NotInitialized, "The service does not accept the access key."),
    403: (NotInitialized, "The service does not accept the access key."),
    404: (SandboxNotFound, "The service does not know the sandbox or its template."),
    429: (QuotaExceeded, "The service accepts no more requests at present."),
}


def sdk() -> ModuleType:
    """Load the SDK. It takes seconds to load, and other providers do not need it.

    Raises:
        NotInitialized: when the SDK is not installed.
    """
    # The SDK's logger writes coloured text between our JSON lines. At debug level it also writes code.
    logging.getLogger("agentrun-logger").disabled = True
    try:
        return importlib.import_module("agentrun.sandbox")
    except ImportError:
        why = "The AgentRun SDK is not installed: pip install 'sandboxed-kernel-gateway[aliyun]'."
        raise NotInitialized(why, extra="aliyun") from None


class Service:
    """The service, used with the access key of one account."""

    def __init__(self, module: ModuleType, config: Config) -> None:
        """Configure the SDK; send nothing yet.

        Args:
            module: module of the SDK.
            config: configuration of the provider.
        """
        self._sdk = module
        self._template = config["template_name"]
        self._config = importlib.import_module("agentrun.utils.config").Config(
            access_key_id=config["access_key_id"],
            access_key_secret=config["access_key_secret"],
            account_id=config["account_id"],
            region_id=config["region"],
            data_endpoint=config["data_endpoint"] or None,
        )
        self._errors = importlib.import_module("agentrun.utils.exception")

    async def create(self) -> Any:
        """Make a sandbox and wait for its first answer.

        Raises:
            SessionError: when no sandbox can be made or reached.
        """
        client = self._sdk.SandboxClient(self._config)
        made = await self.call_sdk(client.create_sandbox_async(self._template, IDLE, config=self._config))
        try:
            kind = self._sdk.TemplateType.CODE_INTERPRETER
            sandbox = await self.call_sdk(self._sdk.Sandbox.connect_async(made.sandbox_id, kind, config=self._config))
            async with asyncio.timeout(START):
                while (await self.call_sdk(sandbox.check_health_async())).get("status") != "ok":  # noqa: ASYNC110 - far away
                    await asyncio.sleep(1)
        except TimeoutError:
            await self.delete(made.sandbox_id)
            raise StartFailed("The service's sandbox does not answer.") from None
        except BaseException:
            await self.delete(made.sandbox_id)
            raise
        return sandbox

    async def delete(self, sandbox_id: str) -> bool:
        """Delete a sandbox. Return True if it is gone."""
        try:
            async with asyncio.timeout(CALL):
                await self.call_sdk(self._sdk.Sandbox.delete_by_id_async(sandbox_id, config=self._config))
        except SandboxNotFound:
            return True
        except (SessionError, TimeoutError) as error:
            log.warning("a sandbox could not be deleted", error=type(error).__name__)
            return False
        return True

    async def healthy(self) -> bool:
        """Return True if the service answers and accepts the access key."""
        try:
            async with asyncio.timeout(CALL):
                await self.call_sdk(
                    self._sdk.SandboxClient(self._config).get_sandbox_async(NO_SANDBOX, config=self._config)
                )
        except SandboxNotFound:
            return True
        except (SessionError, TimeoutError):
            return False
        return True

    async def call_sdk(self, call: Awaitable[T]) -> T:
        """Await a call of the SDK and return its answer.

        Raises:
            SessionError: when the service does not answer, or refuses. The error has no text of the service, which may
                contain keys.
        """
        try:
            return await call
        except self._errors.ResourceNotExistError:
            raise SandboxNotFound("The service does not know the sandbox or its template.") from None
        except self._errors.HTTPError as error:
            status = error.status_code
            kind, why = FAILURES.get(status, (ConnectionFailed, "The service does not answer as it should."))
            raise kind(why, **({"status": status} if status else {})) from None
        except self._errors.AgentRunError as error:
            raise ConnectionFailed(f"The service's SDK failed ({type(error).__name__}).") from None


def outcome(program: Wrapped, reply: Mapping[str, Any], seconds: float) -> Outcome:
    """Return the outcome of a program.

    Raises:
        SessionError: when the reply is not about a program that ran.
    """
    items = reply.get("results")
    if not isinstance(items, list):
        raise _failure(reply)
    items = [item for item in items if isinstance(item, dict)]
    stdout, stderr = (_text(reply, items, name) for name in ("stdout", "stderr"))
    answer = program.read(stdout)
    if answer is not None:
        return ended(answer, stdout, stderr, seconds)
    errors = [item for item in items if item.get("type") == "error"]
    last = next((item.get("status") for item in reversed(items) if item.get("type") == "endOfExecution"), "ok")
    if last == "timeout" or any(item.get("name") == "TimeoutError" for item in errors):
        return timed_out(stdout, stderr, seconds)
    if errors or last != "ok":
        told = "\n".join(_traceback(item) for item in errors)
        return Outcome(Ending.ERROR, stdout, f"{stderr}{told}\n", 1, duration=seconds)
    return ended(None, stdout, stderr, seconds, truncated=reply.get("truncated") is True)


def _failure(reply: Mapping[str, Any]) -> SessionError:
    """Return the error of a reply that has a code in place of results."""
    code = str(reply.get("code", ""))
    if code in {"NOT_FOUND", "ResourceNotExist"}:
        return SandboxNotFound("The service does not know the sandbox any more.")
    return BackendUnavailable(
        "The service did not run the program.", **({"reason": code[:64]} if code.isidentifier() else {})
    )


def _text(reply: Mapping[str, Any], items: list[Any], name: str) -> str:
    """Return a stream's text. If only the items have it, add the line ends that are missing in the items."""
    whole = reply.get(name)
    if isinstance(whole, str):
        return whole
    return "".join(f"{item.get('text', '')}\n" for item in items if item.get("type") == name)


def _traceback(item: Mapping[str, Any]) -> str:
    lines = item.get("traceback")
    return without_colours(
        "\n".join(map(str, lines)) if isinstance(lines, list) and lines else str(item.get("text", ""))
    )
