"""E2B's sandboxes, by its own SDK; or a server of one's own that speaks its protocol.

Source: `e2b-code-interpreter` 2.11. The SDK may read more from environment variables of its own (`E2B_*`), a proxy for
example; what stands in the configuration goes first.
"""

from __future__ import annotations

import asyncio
import time
from types import ModuleType
from typing import Any, ClassVar

import structlog

from sessions.errors import ConnectionFailed, InvalidRequest, NotInitialized, SandboxNotFound, SessionError
from sessions.providers.base import Config, ExecutionResult, Field, InstanceId, SandboxInstance, Schema
from sessions.providers.e2b_sdk import asked, load, outcome
from sessions.providers.results import timed_out, told
from sessions.providers.schema import accepted, is_url, supported
from sessions.providers.wrapping import RUNNERS, wrapped

log = structlog.get_logger()

#: languages that run as they are, without a `main`
SCRIPTS = ("bash", "r", "java")
#: seconds that the service keeps a sandbox which was forgotten, beside the time of its program
LIFE = 300
#: seconds for an answer of the service
CALL = 60.0
SCHEMA: Schema = {
    "api_key": Field("string", "API key", "Of the service.", required=True, secret=True, placeholder="e2b_…"),
    "region": Field(
        "string",
        "Region",
        "Told with each sandbox as its metadata `region`, for servers that heed it; E2B itself has no choice.",
        default="us",
        options=("us", "eu"),
    ),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=5, max=300),
    "template": Field("string", "Template", "From which sandboxes are made; empty: the service's own.", default=""),
    "domain": Field("string", "Domain", "Of the service.", default="e2b.app", destination=True),
    "api_url": Field(
        "string", "API URL", "Of a server of one's own; empty: by the domain.", default="", destination=True
    ),
    "sandbox_url": Field(
        "string",
        "Sandbox URL",
        "Where that server's sandboxes are reached; empty: by the domain.",
        default="",
        destination=True,
    ),
}


class E2B:
    """Programs run in sandboxes of E2B, one for each instance."""

    id: ClassVar[str] = "e2b"
    name: ClassVar[str] = "E2B"
    description: ClassVar[str] = "Sandboxes of E2B, or of a server that speaks its protocol."
    sandboxed: ClassVar[bool] = True

    def __init__(self) -> None:
        """Not ready before it is initialised."""
        self._config: Config | None = None
        self._sdk: ModuleType | None = None
        self._sandboxes: dict[str, Any] = {}

    async def initialize(self, config: Config) -> bool:
        """Take the configuration, load the SDK and ask the service.

        Raises:
            InvalidRequest: the configuration is not valid.
            NotInitialized: the SDK is not installed.
        """
        complete = accepted(self, config)
        await self.close()
        self._sdk, self._config = await asyncio.to_thread(load), complete
        return await self.health_check()

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make a sandbox."""
        sdk, config = self._ready()
        language, instance = supported(self, template), str(InstanceId(tenant, session or "run"))
        made = sdk.AsyncSandbox.create(
            config["template"] or None,
            timeout=config["timeout"] + LIFE,
            metadata={"region": config["region"]},
            **self._options(),
        )
        sandbox = self._sandboxes[instance] = await asked(sdk, made)
        return SandboxInstance(instance, self.id, metadata={"language": language, "sandbox_id": sandbox.sandbox_id})

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program. A sandbox in which one ran too long is gone: the service knows no other end for it."""
        sdk, config = self._ready()
        sandbox = self._sandboxes.get(instance_id)
        if sandbox is None:
            raise SandboxNotFound
        if timeout <= 0:
            raise InvalidRequest("timeout must be above 0", field="timeout")
        program = wrapped(code, language, dict(arguments or {})) if supported(self, language) in RUNNERS else None
        if program is None and arguments:
            raise InvalidRequest(f"a program in {language} takes no arguments", field="arguments")
        seconds, began = min(timeout, config["timeout"]), time.monotonic()
        source = program.source if program else code
        try:
            execution = await asked(sdk, sandbox.run_code(source, language=language, timeout=seconds))
        except ConnectionFailed:
            spent = time.monotonic() - began
            if spent < 0.9 * seconds:  # something else than the program's time
                raise
            await self.destroy_instance(instance_id)
            return told(instance_id, timed_out("", "", spent))
        return told(instance_id, outcome(program, execution, time.monotonic() - began))

    async def destroy_instance(self, instance_id: str) -> bool:
        """Kill the sandbox. One that could not be killed is tried again when it is asked for again."""
        sandbox = self._sandboxes.get(instance_id)
        if sandbox is None or self._sdk is None:
            return True
        try:
            await asked(self._sdk, sandbox.kill(request_timeout=CALL))
        except SandboxNotFound:
            pass
        except SessionError as error:
            log.warning("a sandbox could not be killed", error=error.code)
            return False
        self._sandboxes.pop(instance_id, None)
        return True

    async def health_check(self) -> bool:
        """Whether the service answers, and knows the API key."""
        if self._sdk is None:
            return False
        try:
            await asked(self._sdk, self._sdk.AsyncSandbox.list(limit=1, **self._options()).next_items())
        except SessionError:
            return False
        return True

    def get_supported_languages(self) -> list[str]:
        """Those of the service's own template."""
        return [*RUNNERS, *SCRIPTS]

    @staticmethod
    def get_config_schema() -> Schema:
        """See `SCHEMA`."""
        return SCHEMA

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """URLs are URLs, and a key fits into a header."""
        for name in ("api_url", "sandbox_url"):
            if (url := config.get(name)) and not is_url(url):
                return False, f"{name} must be a URL such as https://e2b.example:3000"
        key = config.get("api_key") or ""
        if not (key.isascii() and key.isprintable()):
            return False, "api_key must be plain characters"
        return True, None

    async def close(self) -> None:
        """Kill all sandboxes."""
        await asyncio.gather(*(self.destroy_instance(instance) for instance in list(self._sandboxes)))
        self._sandboxes.clear()
        self._config = self._sdk = None

    def _ready(self) -> tuple[ModuleType, Config]:
        if self._sdk is None or self._config is None:
            raise NotInitialized("The provider has no configuration.")
        return self._sdk, self._config

    def _options(self) -> dict[str, Any]:
        """Where the service is, and who asks."""
        _, config = self._ready()
        urls = {name: config[name] for name in ("domain", "api_url", "sandbox_url") if config[name]}
        return {"api_key": config["api_key"], "request_timeout": CALL, "retries": 0, "debug": False, **urls}
