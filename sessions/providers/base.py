"""The contract of a provider: a place that can run programs.

Source: the provider interface of RAGFlow's sandbox module (`initialize`, `create_instance`, `execute_code`, …), with
the same names and meanings, as coroutines. A provider is made once and initialised with its configuration. A changed
configuration makes a new provider.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from sessions.model.values import valid_name

Kind = Literal["string", "integer", "boolean"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a provider's configuration. Forms are made from these fields."""

    type: Kind
    label: str
    description: str = ""
    required: bool = False
    #: whether the value is a secret: only its last four characters are ever shown, and it is stored encrypted
    secret: bool = False
    #: whether secrets are sent to this address: a client that changes it must know the secrets
    destination: bool = False
    default: str | int | bool | None = None
    #: bounds of an integer
    min: int | None = None
    max: int | None = None
    #: allowed values. Empty means that any value is allowed.
    options: tuple[str, ...] = ()
    placeholder: str = ""


Schema = Mapping[str, Field]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InstanceId:
    """An instance's id with its tenant and session: `tenant:session:instance`."""

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
    """Outcome of a program, in the form that all providers return."""

    stdout: str
    stderr: str
    #: 0: the program succeeded
    exit_code: int
    #: run time in seconds
    execution_time: float
    #: `status` (an `Ending`), `instance_id`, `result_present`, `result_value`, `artifacts` (each `name`, `mime_type`,
    #: `size`, `content_b64`), and `error_code` (SB0xx) when the program did not end itself
    metadata: Mapping[str, Any] = field(default_factory=dict)


class SandboxProvider(Protocol):
    """A place that can run programs."""

    #: name in settings and in other languages
    id: ClassVar[str]
    #: name for people
    name: ClassVar[str]
    description: ClassVar[str]
    #: whether programs are isolated from the machine that runs them
    sandboxed: ClassVar[bool]

    async def initialize(self, config: Config) -> bool:
        """Prepare the provider with a configuration that fits the schema.

        Returns:
            True if the provider can be used now.

        Raises:
            InvalidRequest: when the configuration is not valid.
        """

    async def create_instance(
        self, template: str = "python", *, tenant: str = "local", session: str | None = None
    ) -> SandboxInstance:
        """Make an instance for programs of a language.

        Args:
            template: one of `get_supported_languages`.
            tenant: owner of the instance and part of its id, see `InstanceId`.
            session: name of the tenant's session. None means that the instance gets its own session.

        Raises:
            InvalidRequest: when the language is not supported.
            SessionError: when no instance can be made.
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
            instance_id: id of an instance that this provider has made.
            code: source of the program. It defines `main`, which is called: in Python `main(**arguments)`, in
                JavaScript `main(arguments)`. The return value is the result. Shell scripts, where a provider has
                shells, have neither a `main` nor arguments.
            language: one of `get_supported_languages`.
            timeout: run time limit in seconds.
            arguments: arguments of `main`.

        Raises:
            SessionError: when the program was not run, or its outcome is not known. A program that fails is a result.
        """

    async def destroy_instance(self, instance_id: str) -> bool:
        """Free an instance. Idempotent.

        Returns:
            True if nothing of the instance is left.
        """

    async def health_check(self) -> bool:
        """Return True if the provider can be used now."""

    def get_supported_languages(self) -> list[str]:
        """Return the languages that the provider can run."""

    @staticmethod
    def get_config_schema() -> Schema:
        """Return the fields of the provider's configuration."""

    def validate_config(self, config: Config) -> tuple[bool, str | None]:
        """Check the rules that the schema cannot express.

        Returns:
            True if the configuration is valid, and the problem if not.
        """

    async def close(self) -> None:
        """Free all resources and end all instances."""
