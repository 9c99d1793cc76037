"""Programs in E2B's sandboxes, or in sandboxes of another server with E2B's protocol. Uses E2B's own SDK.

Source: `e2b-code-interpreter` 2.11. The SDK may read more options, a proxy for example, from its own environment
variables (`E2B_*`). The configuration has precedence over them.
"""

from __future__ import annotations

import asyncio
import time
from types import ModuleType
from typing import Any, ClassVar

import structlog

from sessions.model.errors import ConnectionFailed, InvalidRequest, NotInitialized, SandboxNotFound, SessionError
from sessions.programs.program import Outcome, Program
from sessions.providers.base import Config, Field, InstanceId, Schema
from sessions.providers.e2b_sdk import call_sdk, load, outcome
from sessions.providers.instances import Instances
from sessions.providers.results import timed_out
from sessions.providers.schema import is_plain, is_url
from sessions.providers.wrapping import RUNNERS, wrapped

log = structlog.get_logger()

#: languages of scripts, which run unchanged and without a `main`
SCRIPTS = ("bash", "r", "java")
#: seconds that the service keeps a forgotten sandbox, in addition to the configured run time limit
LIFE = 300
#: seconds for an answer of the service to one request
CALL = 60.0
SCHEMA: Schema = {
    "api_key": Field("string", "API key", "API key of the service.", required=True, secret=True, placeholder="e2b_…"),
    "region": Field(
        "string",
        "Region",
        "Sent as metadata `region` of each sandbox, for servers that use it; E2B itself offers no choice.",
        default="us",
        options=("us", "eu"),
    ),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=5, max=300),
    "template": Field("string", "Template", "Template of the sandboxes; empty: the service's own.", default=""),
    "domain": Field("string", "Domain", "Domain of the service.", default="e2b.app", destination=True),
    "api_url": Field(
        "string", "API URL", "URL of your own server; empty: from the domain.", default="", destination=True
    ),
    "sandbox_url": Field(
        "string",
        "Sandbox URL",
        "URL of that server's sandboxes; empty: from the domain.",
        default="",
        destination=True,
    ),
}


class E2B(Instances[Any]):
    """Programs run in sandboxes of E2B, one for each instance."""

    id: ClassVar[str] = "e2b"
    name: ClassVar[str] = "E2B"
    description: ClassVar[str] = "Sandboxes of E2B, or of a server that speaks its protocol."
    sandboxed: ClassVar[bool] = True

    schema: ClassVar[Schema] = SCHEMA

    def __init__(self) -> None:
        """Make a provider that is not initialised."""
        super().__init__()
        self._sdk: ModuleType | None = None

    async def _set_up(self, config: Config) -> None:  # noqa: ARG002 - the SDK takes it with each call
        self._sdk = await asyncio.to_thread(load)

    async def _tear_down(self) -> None:
        self._sdk = None

    async def _make(self, instance: InstanceId, config: Config) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        sdk = self._loaded()
        making = sdk.AsyncSandbox.create(
            config["template"] or None,
            timeout=config["timeout"] + LIFE,
            metadata={"region": config["region"]},
            **_options(config),
        )
        sandbox = await call_sdk(sdk, making)
        return sandbox, {"sandbox_id": sandbox.sandbox_id}

    async def _run(self, instance_id: str, program: Program, config: Config) -> Outcome:
        """Run a program. After a timeout its sandbox is killed: the service has no other way to end a program."""
        language = program.language
        code = wrapped(program.code, language, dict(program.arguments)) if language in RUNNERS else None
        if code is None and program.arguments:
            raise InvalidRequest(f"a program in {language} takes no arguments", field="arguments")
        seconds, began = int(min(program.timeout or LIFE, config["timeout"])), time.monotonic()
        source = code.source if code else program.code
        running = self._instances[instance_id].run_code(source, language=language, timeout=seconds)
        try:
            execution = await call_sdk(self._loaded(), running)
        except ConnectionFailed:
            spent = time.monotonic() - began
            if spent < 0.9 * seconds:  # another failure than the program's timeout
                raise
            await self.destroy_instance(instance_id)
            return timed_out("", "", spent)
        return outcome(code, execution, time.monotonic() - began)

    async def _free(self, made: Any) -> bool:
        if self._sdk is None:
            return True
        try:
            await call_sdk(self._sdk, made.kill(request_timeout=CALL))
        except SandboxNotFound:
            pass
        except SessionError as error:
            log.warning("a sandbox could not be killed", error=error.code)
            return False
        return True

    async def health_check(self) -> bool:
        """Return True if the service answers and accepts the API key."""
        if self._sdk is None or self._config is None:
            return False
        try:
            await call_sdk(self._sdk, self._sdk.AsyncSandbox.list(limit=1, **_options(self._config)).next_items())
        except SessionError:
            return False
        return True

    def get_supported_languages(self) -> list[str]:
        """Return the languages of the service's own template."""
        return [*RUNNERS, *SCRIPTS]

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check that the URLs are valid, and that the rest fits into headers and addresses."""
        for name in ("api_url", "sandbox_url"):
            if (url := config.get(name)) and not is_url(url):
                return False, f"{name} must be a URL such as https://e2b.example:3000"
        for name in ("api_key", "template", "domain"):
            if not is_plain(config.get(name) or ""):
                return False, f"{name} must be plain characters"
        return True, None

    def _loaded(self) -> ModuleType:
        if self._sdk is None:
            raise NotInitialized("The provider has no configuration.")
        return self._sdk


def _options(config: Config) -> dict[str, Any]:
    """Return the address of the service, the API key and the options of each call."""
    urls = {name: config[name] for name in ("domain", "api_url", "sandbox_url") if config[name]}
    return {"api_key": config["api_key"], "request_timeout": CALL, "retries": 0, "debug": False, **urls}
