"""A provider whose behaviour a test sets, and which records its calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sessions.model.errors import SessionError
from sessions.providers.base import Config, ExecutionResult, Field, InstanceId, SandboxInstance, Schema

SECRET = "a-very-secret-api-key-0123456789"  # noqa: S105 - of no service


@dataclass
class Behaviour:
    """The behaviour of all providers of one kind, and the providers made."""

    ready: bool = True
    healthy: bool = True
    #: errors that methods raise, by method name
    failing: dict[str, SessionError] = field(default_factory=dict)
    #: event that a program waits for before it ends
    go: asyncio.Event | None = None
    result: ExecutionResult | None = None
    #: seconds that `initialize` takes
    slow: float = 0.0
    made: list[FakeProvider] = field(default_factory=list)

    def make(self) -> FakeProvider:
        self.made.append(FakeProvider(self))
        return self.made[-1]


class FakeProvider:
    """A fake provider."""

    id: ClassVar[str] = "fake"
    name: ClassVar[str] = "Fake"
    description: ClassVar[str] = "does as it is told"
    sandboxed: ClassVar[bool] = True

    def __init__(self, told: Behaviour) -> None:
        self.told = told
        self.config: dict[str, Any] | None = None
        self.instances: set[str] = set()
        self.calls: list[str] = []
        self.closed = False

    def _do(self, what: str) -> None:
        assert not self.closed, f"{what} after close"
        self.calls.append(what)
        if what in self.told.failing:
            raise self.told.failing[what]

    async def initialize(self, config: Config) -> bool:
        self._do("initialize")
        await asyncio.sleep(self.told.slow)
        self.config = dict(config)
        return self.told.ready

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        assert self.config is not None
        self._do("create_instance")
        await asyncio.sleep(0)
        instance = str(InstanceId(tenant, session or "own"))
        self.instances.add(instance)
        return SandboxInstance(instance, self.id, metadata={"template": template})

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - as of the contract
        arguments: Config | None = None,
    ) -> ExecutionResult:
        assert instance_id in self.instances
        assert self.config is not None
        self._do("execute_code")
        await asyncio.sleep(0)
        if self.told.go is not None:
            await self.told.go.wait()
        assert not self.closed
        told = {"asked": (instance_id, code, language, timeout, arguments), "answer": self.config.get("answer")}
        return self.told.result or ExecutionResult(f"{self.config.get('answer')}\n", "", 0, 0.1, told)

    async def destroy_instance(self, instance_id: str) -> bool:
        self.instances.discard(instance_id)
        self._do("destroy_instance")
        return True

    async def health_check(self) -> bool:
        self._do("health_check")
        return self.told.healthy

    def get_supported_languages(self) -> list[str]:
        return ["python"]

    @staticmethod
    def get_config_schema() -> Schema:
        return {
            "endpoint": Field("string", "Endpoint", destination=True),
            "answer": Field("string", "Answer"),
            "api_key": Field("string", "Key", secret=True),
        }

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        if config.get("answer") == "impossible":
            return False, "that is no answer"
        return True, None

    async def close(self) -> None:
        assert not self.closed
        assert not self.instances, "closed under an instance"
        self.closed = True


class Unsafe(FakeProvider):
    """A fake provider that is no sandbox."""

    id: ClassVar[str] = "unsafe"
    sandboxed: ClassVar[bool] = False
