"""Programs in Aliyun's AgentRun, or in another service with AgentRun's protocol, such as this gateway. Uses its SDK.

The SDK may read more options, a security token for example, from its own environment variables (`AGENTRUN_*`). The
configuration has precedence over them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from sessions.model.errors import NotInitialized
from sessions.programs.program import Outcome, Program
from sessions.providers.agentrun import LONGEST, TRANSFER, Service, outcome, sdk
from sessions.providers.base import Config, Field, InstanceId, Schema
from sessions.providers.instances import Instances
from sessions.providers.results import timed_out
from sessions.providers.schema import is_plain, is_url
from sessions.providers.wrapping import RUNNERS, wrapped

SCHEMA: Schema = {
    "access_key_id": Field(
        "string", "Access key id", "Key id of an Aliyun account or RAM user.", required=True, secret=True
    ),
    "access_key_secret": Field(
        "string", "Access key secret", "Secret of the access key id.", required=True, secret=True
    ),
    "account_id": Field("string", "Account id", "Id of the Aliyun account that has the templates.", required=True),
    "region": Field(
        "string",
        "Region",
        "Where sandboxes run.",
        default="cn-hangzhou",
        options=("cn-hangzhou", "cn-beijing", "cn-shanghai", "cn-shenzhen", "cn-guangzhou"),
    ),
    "template_name": Field(
        "string", "Template", "Template of the sandboxes; it must exist.", default="code-interpreter-v1"
    ),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=1, max=LONGEST),
    "data_endpoint": Field(
        "string",
        "Endpoint",
        "URL of another service that speaks AgentRun, as this gateway does; empty: Aliyun's, by account and region.",
        default="",
        destination=True,
        placeholder="https://gateway.example:8888",
    ),
}


class AliyunCodeInterpreter(Instances[Any]):
    """Programs run in sandboxes of Aliyun, one for each instance."""

    id: ClassVar[str] = "aliyun_codeinterpreter"
    name: ClassVar[str] = "Aliyun Code Interpreter"
    description: ClassVar[str] = "Sandboxes of Aliyun's AgentRun service. A program may run for 30 seconds."
    sandboxed: ClassVar[bool] = True

    schema: ClassVar[Schema] = SCHEMA

    def __init__(self) -> None:
        """Make a provider that is not initialised."""
        super().__init__()
        self._service: Service | None = None

    async def _set_up(self, config: Config) -> None:
        self._service = Service(await asyncio.to_thread(sdk), config)

    async def _tear_down(self) -> None:
        self._service = None

    async def _make(self, instance: InstanceId, config: Config) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        sandbox = await self._connected().create()
        return sandbox, {"sandbox_id": sandbox.sandbox_id}

    async def _run(self, instance_id: str, program: Program, config: Config) -> Outcome:
        """Run a program in the sandbox's context for the language."""
        code = wrapped(program.code, program.language, dict(program.arguments))
        seconds, began = int(min(program.timeout or LONGEST, config["timeout"])), time.monotonic()
        context = self._instances[instance_id].context
        try:
            async with asyncio.timeout(seconds + TRANSFER):
                reply = await self._connected().call_sdk(
                    context.execute_async(code=code.source, language=program.language, timeout=seconds)
                )
        except TimeoutError:
            return timed_out("", "", time.monotonic() - began)
        return outcome(code, reply, time.monotonic() - began)

    async def _free(self, made: Any) -> bool:
        return self._service is None or await self._service.delete(made.sandbox_id)

    async def health_check(self) -> bool:
        """Return True if the service answers and accepts the access key."""
        return self._service is not None and await self._service.healthy()

    def get_supported_languages(self) -> list[str]:
        """Return the languages of the service."""
        return list(RUNNERS)

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check that the endpoint is a URL, and that the rest fits into headers and addresses."""
        if (endpoint := config.get("data_endpoint")) and not is_url(endpoint):
            return False, "data_endpoint must be a URL such as https://gateway.example:8888"
        for name in ("access_key_id", "access_key_secret", "account_id", "template_name"):
            if not is_plain(config.get(name) or ""):
                return False, f"{name} must be plain characters"
        return True, None

    def _connected(self) -> Service:
        if self._service is None:
            raise NotInitialized("The provider has no configuration.")
        return self._service
