"""Aliyun's AgentRun code interpreter, by its own SDK; or whatever speaks its protocol, as this gateway does.

The SDK may read more from environment variables of its own (`AGENTRUN_*`), a security token for example; what stands
in the configuration goes first.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from sessions.errors import InvalidRequest, NotInitialized, SandboxNotFound
from sessions.providers.agentrun import LONGEST, WAY, Service, outcome, sdk
from sessions.providers.base import Config, ExecutionResult, Field, InstanceId, SandboxInstance, Schema
from sessions.providers.results import timed_out, told
from sessions.providers.schema import accepted, is_url, supported
from sessions.providers.wrapping import RUNNERS, wrapped

SCHEMA: Schema = {
    "access_key_id": Field("string", "Access key id", "Of an Aliyun account or RAM user.", required=True, secret=True),
    "access_key_secret": Field("string", "Access key secret", "Belongs to the id.", required=True, secret=True),
    "account_id": Field("string", "Account id", "Of the Aliyun account that has the templates.", required=True),
    "region": Field(
        "string",
        "Region",
        "Where sandboxes run.",
        default="cn-hangzhou",
        options=("cn-hangzhou", "cn-beijing", "cn-shanghai", "cn-shenzhen", "cn-guangzhou"),
    ),
    "template_name": Field(
        "string", "Template", "From which sandboxes are made; it must be there.", default="code-interpreter-v1"
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


class AliyunCodeInterpreter:
    """Programs run in sandboxes of Aliyun, one for each instance."""

    id: ClassVar[str] = "aliyun_codeinterpreter"
    name: ClassVar[str] = "Aliyun Code Interpreter"
    description: ClassVar[str] = "Sandboxes of Aliyun's AgentRun service. A program may run for 30 seconds."
    sandboxed: ClassVar[bool] = True

    def __init__(self) -> None:
        """Not ready before it is initialised."""
        self._config: Config | None = None
        self._service: Service | None = None
        self._sandboxes: dict[str, Any] = {}

    async def initialize(self, config: Config) -> bool:
        """Take the configuration, load the SDK and ask the service.

        Raises:
            InvalidRequest: the configuration is not valid.
            NotInitialized: the SDK is not installed.
        """
        complete = accepted(self, config)
        await self.close()
        self._service = Service(await asyncio.to_thread(sdk), complete)
        self._config = complete
        return await self._service.healthy()

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make a sandbox."""
        service, language = self._ready(), supported(self, template)
        instance = str(InstanceId(tenant, session or "run"))
        sandbox = self._sandboxes[instance] = await service.create()
        return SandboxInstance(instance, self.id, metadata={"language": language, "sandbox_id": sandbox.sandbox_id})

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program in the instance's sandbox, in its context of that language."""
        service, sandbox = self._ready(), self._sandboxes.get(instance_id)
        if sandbox is None:
            raise SandboxNotFound
        if timeout <= 0:
            raise InvalidRequest("timeout must be above 0", field="timeout")
        program = wrapped(code, supported(self, language), dict(arguments or {}))
        seconds, began = min(timeout, self._config["timeout"] if self._config else LONGEST), time.monotonic()
        try:
            async with asyncio.timeout(seconds + WAY):
                reply = await service.asked(
                    sandbox.context.execute_async(code=program.source, language=language, timeout=seconds)
                )
        except TimeoutError:
            return told(instance_id, timed_out("", "", time.monotonic() - began))
        return told(instance_id, outcome(program, reply, time.monotonic() - began))

    async def destroy_instance(self, instance_id: str) -> bool:
        """Delete the sandbox. One that could not be deleted is tried again when it is asked for again."""
        sandbox = self._sandboxes.get(instance_id)
        if sandbox is None or self._service is None:
            return True
        if not await self._service.delete(sandbox.sandbox_id):
            return False
        self._sandboxes.pop(instance_id, None)
        return True

    async def health_check(self) -> bool:
        """Whether the service answers, and knows the access key."""
        return self._service is not None and await self._service.healthy()

    def get_supported_languages(self) -> list[str]:
        """Those that the service has."""
        return list(RUNNERS)

    @staticmethod
    def get_config_schema() -> Schema:
        """See `SCHEMA`."""
        return SCHEMA

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """An endpoint is a URL."""
        if (endpoint := config.get("data_endpoint")) and not is_url(endpoint):
            return False, "data_endpoint must be a URL such as https://gateway.example:8888"
        return True, None

    async def close(self) -> None:
        """Delete all sandboxes."""
        await asyncio.gather(*(self.destroy_instance(instance) for instance in list(self._sandboxes)))
        self._sandboxes.clear()
        self._config = self._service = None

    def _ready(self) -> Service:
        if self._service is None:
            raise NotInitialized("The provider has no configuration.")
        return self._service
