"""The common part of all providers: configuration, instances, and the checks before a program runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from sessions.model.errors import InvalidRequest, NotInitialized, SandboxNotFound
from sessions.programs.program import Outcome, Program
from sessions.providers.base import Config, ExecutionResult, InstanceId, SandboxInstance, SandboxProvider, Schema
from sessions.providers.results import to_result
from sessions.providers.schema import accepted, supported

#: the provider's own object for an instance
Made = TypeVar("Made")


class Instances(SandboxProvider, ABC, Generic[Made]):
    """A provider with its configuration and its instances; see `SandboxProvider` for the contract."""

    schema: ClassVar[Schema]

    def __init__(self) -> None:
        """Make a provider that is not initialised."""
        self._config: Config | None = None
        self._instances: dict[str, Made] = {}

    async def initialize(self, config: Config) -> bool:
        """Set the configuration, and check the service.

        Raises:
            InvalidRequest: when the configuration is not valid.
            NotInitialized: when an SDK is not installed.
        """
        complete = accepted(self, config)
        await self.close()
        await self._set_up(complete)
        self._config = complete
        return await self.health_check()

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make an instance."""
        config, language, instance = self._ready(), supported(self, template), InstanceId(tenant, session or "run")
        made, metadata = await self._make(instance, config)
        self._instances[str(instance)] = made
        return SandboxInstance(str(instance), self.id, metadata={"language": language} | metadata)

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program in an instance."""
        config = self._ready()
        if instance_id not in self._instances:
            raise SandboxNotFound
        if timeout <= 0:
            raise InvalidRequest("timeout must be above 0", field="timeout")
        program = Program(code, supported(self, language), dict(arguments or {}), timeout)
        return to_result(instance_id, await self._run(instance_id, program, config))

    async def destroy_instance(self, instance_id: str) -> bool:
        """Free an instance. After a failure the next call tries again."""
        made = self._instances.get(instance_id)
        if made is None:
            return True
        if not await self._free(made):
            return False
        self._instances.pop(instance_id, None)
        return True

    @classmethod
    def get_config_schema(cls) -> Schema:
        """Return the fields of the provider's configuration."""
        return cls.schema

    async def close(self) -> None:
        """Destroy all instances, and free what the configuration needed."""
        await asyncio.gather(*(self.destroy_instance(instance) for instance in list(self._instances)))
        self._instances.clear()
        self._config = None
        await self._tear_down()

    def _ready(self) -> Config:
        if self._config is None:
            raise NotInitialized("The provider has no configuration.")
        return self._config

    async def _set_up(self, config: Config) -> None:
        """Prepare clients and other objects for the configuration."""

    async def _tear_down(self) -> None:
        """Free what `_set_up` has prepared."""

    @abstractmethod
    async def _make(self, instance: InstanceId, config: Config) -> tuple[Made, dict[str, Any]]:
        """Make an instance. Return the provider's own object for it, and metadata for clients."""

    @abstractmethod
    async def _run(self, instance_id: str, program: Program, config: Config) -> Outcome:
        """Run a program in an instance that exists. `timeout` of the program is set."""

    @abstractmethod
    async def _free(self, made: Made) -> bool:
        """Free an instance. Return False when that must be tried again."""
