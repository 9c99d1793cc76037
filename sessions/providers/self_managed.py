"""Our own kernels: those of this gateway, or those of another one (or RAGFlow's executor) by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from sessions.errors import InvalidRequest, NotInitialized, SandboxNotFound
from sessions.oneshot import Program, Runner
from sessions.providers.base import Config, ExecutionResult, Field, InstanceId, SandboxInstance, Schema
from sessions.providers.forwarding import LANGUAGES
from sessions.providers.results import told
from sessions.providers.schema import accepted, is_url, supported

if TYPE_CHECKING:
    from sessions.providers.executor import Executor

MEMORY: Mapping[str, int] = {"128m": 128 * 2**20, "256m": 256 * 2**20, "512m": 512 * 2**20, "1g": 2**30}

SCHEMA: Schema = {
    "endpoint": Field(
        "string",
        "Endpoint",
        "URL of another gateway or of RAGFlow's executor; empty: this gateway itself.",
        destination=True,
        default="",
        placeholder="http://sandbox-executor-manager:9385",
    ),
    "api_key": Field("string", "API key", "Sent to the endpoint as a bearer token.", secret=True, default=""),
    "timeout": Field("integer", "Timeout", "Seconds that a program may run at most.", default=30, min=5, max=300),
    "max_retries": Field(
        "integer", "Retries", "How often a refused connection to the endpoint is tried again.", default=3, min=0, max=10
    ),
    "max_memory": Field(
        "string",
        "Memory",
        "Of a program in this gateway; empty: as much as the gateway gives. An endpoint has limits of its own.",
        default="",
        options=tuple(MEMORY),
    ),
}


def within(config: Config, program: Program) -> Program:
    """A program of this gateway, within the limits that a configuration names, if it names any."""
    return replace(
        program,
        timeout=_least(program.timeout, config.get("timeout")),
        memory=_least(program.memory, MEMORY.get(config.get("max_memory", ""))),
    )


def _least(*limits: Any) -> Any:
    """The lowest of those that there are."""
    return min((limit for limit in limits if limit is not None), default=None)


class SelfManaged:
    """Programs run in fresh kernels that are thrown away."""

    id: ClassVar[str] = "self_managed"
    name: ClassVar[str] = "Self-managed"
    description: ClassVar[str] = "Kernels in gVisor containers: this gateway's own, or another one's by its URL."
    sandboxed: ClassVar[bool] = True

    def __init__(self, runner: Runner) -> None:
        """Not ready before it is initialised.

        Args:
            runner: of this gateway, for when there is no endpoint.
        """
        self._own = runner
        self._executor: Executor | None = None
        self._config: Config | None = None
        self._instances: dict[str, InstanceId] = {}

    async def initialize(self, config: Config) -> bool:
        """Take the configuration. An endpoint has to answer."""
        complete = accepted(self, config)
        await self.close()
        self._config = complete
        if complete["endpoint"]:
            from sessions.providers.executor import Executor  # noqa: PLC0415 - HTTP clients take a tenth of a start

            self._executor = Executor(complete["endpoint"], complete["api_key"], complete["max_retries"])
        return await self.health_check()

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Give a name to what comes: each program gets a kernel of its own."""
        self._ready()
        language = supported(self, template)
        instance = InstanceId(tenant, session or "run")
        self._instances[str(instance)] = instance
        return SandboxInstance(str(instance), self.id, metadata={"language": language})

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program in a kernel of its own."""
        config = self._ready()
        if instance_id not in self._instances:
            raise SandboxNotFound
        if timeout <= 0:
            raise InvalidRequest("timeout must be above 0", field="timeout")
        program = Program(code, supported(self, language), dict(arguments or {}), timeout)
        runner = self._executor or self._own
        return told(instance_id, await runner.run(self._instances[instance_id].tenant, within(config, program)))

    async def destroy_instance(self, instance_id: str) -> bool:
        """Forget its name: nothing else is left of it."""
        self._instances.pop(instance_id, None)
        return True

    async def health_check(self) -> bool:
        """Whether the endpoint says that it is well; this gateway itself says so elsewhere."""
        if self._executor is not None:
            return await self._executor.healthy()
        return self._config is not None

    def get_supported_languages(self) -> list[str]:
        """Those that both this gateway and RAGFlow's executor have."""
        return list(LANGUAGES)

    @staticmethod
    def get_config_schema() -> Schema:
        """See `SCHEMA`."""
        return SCHEMA

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """An endpoint is a URL, and a key fits into a header."""
        if (endpoint := config.get("endpoint")) and not is_url(endpoint):
            return False, "endpoint must be a URL such as http://host:9385"
        key = config.get("api_key") or ""
        if not (key.isascii() and key.isprintable()):
            return False, "api_key must be plain characters"
        return True, None

    async def close(self) -> None:
        """Close what is open to the endpoint."""
        self._instances.clear()
        self._config = None
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.close()

    def _ready(self) -> Config:
        if self._config is None:
            raise NotInitialized("The provider has no configuration.")
        return self._config
