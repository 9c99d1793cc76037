"""Programs in kernels of this gateway, or of another gateway (or RAGFlow's executor), which its URL names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from sessions.programs.program import Outcome, Program, Runner
from sessions.providers.base import Config, Field, InstanceId, Schema
from sessions.providers.forwarding import LANGUAGES
from sessions.providers.instances import Instances
from sessions.providers.schema import is_plain, is_url

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
        "Memory limit of a program in this gateway; empty: the gateway's limit. An endpoint has its own limits.",
        default="",
        options=tuple(MEMORY),
    ),
}


def within(config: Config, program: Program) -> Program:
    """Return a program of this gateway with its limits lowered to those of the configuration, if it has any."""
    return replace(
        program,
        timeout=_least(program.timeout, config.get("timeout")),
        memory=_least(program.memory, MEMORY.get(config.get("max_memory", ""))),
    )


def _least(*limits: Any) -> Any:
    """Return the lowest limit that is not None."""
    return min((limit for limit in limits if limit is not None), default=None)


class SelfManaged(Instances[InstanceId]):
    """Programs run in fresh kernels that are thrown away."""

    id: ClassVar[str] = "self_managed"
    name: ClassVar[str] = "Self-managed"
    description: ClassVar[str] = "Kernels in gVisor containers: this gateway's own, or another one's by its URL."
    sandboxed: ClassVar[bool] = True

    schema: ClassVar[Schema] = SCHEMA

    def __init__(self, runner: Runner) -> None:
        """Make a provider that is not initialised.

        Args:
            runner: runner of this gateway, used when there is no endpoint.
        """
        super().__init__()
        self._own = runner
        self._executor: Executor | None = None

    async def _set_up(self, config: Config) -> None:
        if config["endpoint"]:
            from sessions.providers.executor import Executor  # noqa: PLC0415 - HTTP clients take a tenth of a start

            self._executor = Executor(config["endpoint"], config["api_key"], config["max_retries"])

    async def _tear_down(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.close()

    async def _make(self, instance: InstanceId, config: Config) -> tuple[InstanceId, dict[str, Any]]:  # noqa: ARG002
        return instance, {}  # no kernel starts yet: each program gets its own

    async def _run(self, instance_id: str, program: Program, config: Config) -> Outcome:
        runner = self._executor or self._own
        return await runner.run(self._instances[instance_id].tenant, within(config, program))

    async def _free(self, made: InstanceId) -> bool:  # noqa: ARG002
        return True

    async def health_check(self) -> bool:
        """Return True if the endpoint reports that it is healthy. This gateway's own health is reported elsewhere."""
        if self._executor is not None:
            return await self._executor.healthy()
        return self._config is not None

    def get_supported_languages(self) -> list[str]:
        """Return the languages that both this gateway and RAGFlow's executor have."""
        return list(LANGUAGES)

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check that the endpoint is a URL and that the key fits into a header."""
        if (endpoint := config.get("endpoint")) and not is_url(endpoint):
            return False, "endpoint must be a URL such as http://host:9385"
        if not is_plain(config.get("api_key") or ""):
            return False, "api_key must be plain characters"
        return True, None
