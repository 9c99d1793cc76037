"""The contract of a provider: somewhere that a program can be run.

Source: the provider interface of RAGFlow's sandbox module (`initialize`, `create_instance`, `execute_code`, …), with
the same names and meanings, as coroutines. A provider is made once and initialised with its configuration; a changed
configuration makes a new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from sessions.models import valid_name

Kind = Literal["string", "integer", "boolean"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a provider's configuration, as forms are made from it."""

    type: Kind
    label: str
    description: str = ""
    required: bool = False
    #: never shown again but for its last four characters, and encrypted where it is kept
    secret: bool = False
    #: where secrets are sent: whoever changes it has to know them
    destination: bool = False
    default: str | int | bool | None = None
    #: of an integer
    min: int | None = None
    max: int | None = None
    #: the values there are; empty: any
    options: tuple[str, ...] = ()
    placeholder: str = ""


Schema = Mapping[str, Field]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceId:
    """Whose instance, in which session: `tenant:session:instance`."""

    tenant: str
    session: str
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        for kind in ("tenant", "session", "instance"):
            valid_name(kind, getattr(self, kind))

    def __str__(self) -> str:
        return f"{self.tenant}:{self.session}:{self.instance}"


@dataclass(frozen=True, slots=True)
class SandboxInstance:
    """An instance that a provider has made."""

    #: `tenant:session:instance`
    instance_id: str
    provider: str
    status: Literal["running", "stopped", "error"] = "running"
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What came of a program, as all providers tell it."""

    stdout: str
    stderr: str
    #: 0 if it ended well
    exit_code: int
    #: seconds
    execution_time: float
    #: `status` (an `Ending`), `instance_id`, `result_present`, `result_value`, `artifacts` (each `name`, `mime_type`,
    #: `size`, `content_b64`), and `error_code` (SB0xx) when it was not the program that ended itself
    metadata: Mapping[str, Any] = field(default_factory=dict)


class SandboxProvider(Protocol):
    """Somewhere that a program can be run."""

    #: how settings and other languages name it
    id: ClassVar[str]
    #: how people name it
    name: ClassVar[str]
    description: ClassVar[str]
    #: whether what runs there is kept from the machine that it runs on
    sandboxed: ClassVar[bool]

    async def initialize(self, config: Config) -> bool:
        """Get ready with a configuration that fits the schema.

        Returns:
            whether it can be used now.

        Raises:
            InvalidRequest: the configuration is not valid.
        """

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make an instance for programs of a language.

        Args:
            template: one of `get_supported_languages`.
            tenant: whose it is; together with the instance it makes the id, see `InstanceId`.
            session: in which of the tenant's sessions; None: in one of its own.

        Raises:
            InvalidRequest: the language is not supported.
            SessionError: none can be made.
        """

    async def execute_code(
        self,
        instance_id: str,
        code: str,
        language: str,
        timeout: int = 10,  # noqa: ASYNC109 - RAGFlow's name
        arguments: Config | None = None,
    ) -> ExecutionResult:
        """Run a program in an instance and wait for its end.

        Args:
            instance_id: of an instance that this provider has made.
            code: what runs. It defines `main`, which is called: in Python `main(**arguments)`, in JavaScript
                `main(arguments)`; what it returns is the result. Where a provider has shells, their scripts have
                neither a `main` nor arguments.
            language: one of `get_supported_languages`.
            timeout: seconds.
            arguments: what `main` is called with.

        Raises:
            SessionError: it was not run, or what became of it is not known. A program that fails is a result.
        """

    async def destroy_instance(self, instance_id: str) -> bool:
        """Free an instance. Idempotent.

        Returns:
            whether nothing is left of it.
        """

    async def health_check(self) -> bool:
        """Whether it can be used now."""

    def get_supported_languages(self) -> list[str]:
        """What it can run."""

    @staticmethod
    def get_config_schema() -> Schema:
        """The fields of its configuration."""

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check what the schema cannot.

        Returns:
            whether it is valid, and if not, why.
        """

    async def close(self) -> None:
        """Free what it holds; its instances end."""
