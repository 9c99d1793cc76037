"""The dialect's bodies, and what they mean here. Clients of several versions send them: unknown fields are no error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.config import Settings
from sessions.errors import InvalidRequest, SessionError
from sessions.models import Limits, SandboxSpec, valid_env
from sessions.sandbox import Sandbox
from sessions.templates import Template

CODE_INTERPRETER: Literal["CodeInterpreter"] = "CodeInterpreter"
_MIB = 1024**2
#: seconds
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Body(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="ignore")


class TemplateBody(BaseModel):
    """A template. What means nothing here is kept and shown again."""

    model_config = ConfigDict(extra="allow")

    templateName: str = ""  # noqa: N815 - the wire's names
    templateType: Literal["CodeInterpreter"] = CODE_INTERPRETER  # noqa: N815
    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: MiB
    memory: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: MiB
    diskSize: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # noqa: N815
    sandboxIdleTimeoutInSeconds: _Seconds | None = None  # noqa: N815
    sandboxTTLInSeconds: _Seconds | None = None  # noqa: N815
    environmentVariables: dict[str, str] | None = None  # noqa: N815
    ossConfiguration: list[Any] | None = None  # noqa: N815
    nasConfig: Any = None  # noqa: N815

    def checked(self) -> TemplateBody:
        """It, when sandboxes can be made of it.

        Raises:
            InvalidRequest: they cannot.
        """
        refuse_mounts(ossConfiguration=self.ossConfiguration, nasConfig=self.nasConfig)
        valid_env(self.environmentVariables or {})
        return self


class CreateSandbox(Body):
    """A sandbox to be made."""

    templateName: str  # noqa: N815
    sandboxId: str | None = None  # noqa: N815
    sandboxIdleTimeoutSeconds: _Seconds | None = None  # noqa: N815
    sandboxIdleTimeoutInSeconds: _Seconds | None = None  # noqa: N815
    nasConfig: Any = None  # noqa: N815
    ossMountConfig: Any = None  # noqa: N815
    polarFsConfig: Any = None  # noqa: N815

    def spec(self, template: Template, settings: Settings) -> SandboxSpec:
        """As the domain has it: at most what the gateway itself allows.

        Raises:
            InvalidRequest: it is to have what cannot be had here.
        """
        refuse_mounts(nasConfig=self.nasConfig, ossMountConfig=self.ossMountConfig, polarFsConfig=self.polarFsConfig)
        wanted, own = TemplateBody.model_validate(template.content), settings.limits
        idle = self.sandboxIdleTimeoutSeconds or self.sandboxIdleTimeoutInSeconds or wanted.sandboxIdleTimeoutInSeconds
        return SandboxSpec(
            template=template.name,
            template_id=template.id,
            limits=Limits(
                memory=_at_most(own.memory, wanted.memory, _MIB),
                cpus=min(own.cpus, wanted.cpu or own.cpus),
                processes=own.processes,
                disk=_at_most(own.disk, wanted.diskSize, _MIB),
                output=own.output,
            ),
            env=valid_env(wanted.environmentVariables or {}),
            idle_timeout=min(idle or settings.idle_timeout, settings.max_idle_timeout),
            lifetime=wanted.sandboxTTLInSeconds or 0.0,
            max_execute_timeout=settings.max_execute_timeout,
        )


def _at_most(limit: int, wanted: float | None, unit: int) -> int:
    return limit if wanted is None else max(1, min(limit, int(wanted * unit)))


def refuse_mounts(**wanted: Any) -> None:
    """Refuse what would be mounted: to leave it out in silence would lose what is written there.

    Raises:
        InvalidRequest: something is wanted.
    """
    for field, value in wanted.items():
        if value:
            raise InvalidRequest(f"{field}: nothing can be mounted into sandboxes here", field=field)


class CreateContext(Body):
    """A context to be made."""

    language: str | None = None
    cwd: str | None = None


class Execute(Body):
    """Code to be run."""

    code: str
    contextId: str | None = None  # noqa: N815
    language: str | None = None
    timeout: _Seconds | None = None
    #: the code defines `main`, which is called with these; the vendor's service does not know them
    arguments: dict[str, Any] | None = None


class WriteFile(Body):
    """A file to be written."""

    path: str
    content: str
    mode: str | None = None
    encoding: str | None = None
    createDir: bool = True  # noqa: N815


class MakeDirectory(Body):
    """A directory to be made."""

    path: str
    parents: bool = True
    mode: str | None = None


class Move(Body):
    """An entry to be moved."""

    source: str
    destination: str


class Remove(Body):
    """An entry to be removed."""

    path: str


class Command(Body):
    """A command to be run."""

    command: str
    cwd: str | None = None
    timeout: _Seconds | None = None


#: seconds since 1970 that are a year too many
YEAR_10000 = 253_402_300_800


def time_of(seconds: float) -> str:
    """A time as the wire has it."""
    # A file's may be any number: its user sets it.
    seconds = min(max(seconds, 0), YEAR_10000 - 1)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def sentences(failure: SessionError) -> str:
    """What happened and what to do, for clients that have one field for both."""
    return f"{failure.message.rstrip('.')}. {failure.resolution}"


def template_model(template: Template) -> dict[str, Any]:
    """A template as clients see it."""
    content = {"templateType": CODE_INTERPRETER, "description": "", **template.content}
    return content | {
        "templateId": template.id,
        "templateName": template.name,
        "status": "READY",
        "createdAt": time_of(template.created_at),
        "lastUpdatedAt": time_of(template.updated_at),
    }


def sandbox_model(sandbox: Sandbox) -> dict[str, Any]:
    """A sandbox as clients see it."""
    ended = sandbox.ended_at
    idle_timeout = round(sandbox.spec.idle_timeout)
    told = {"reason": sandbox.end_reason, "filesLost": sandbox.loss}
    model = {
        "sandboxId": sandbox.key.name,
        "templateId": sandbox.spec.template_id,
        "templateName": sandbox.spec.template,
        "templateType": CODE_INTERPRETER,
        "status": "READY" if ended is None else "TERMINATED",
        "sandboxIdleTimeoutSeconds": idle_timeout,
        "sandboxIdleTimeoutInSeconds": idle_timeout,
        "sandboxIdleTTLInSeconds": idle_timeout,
        "createdAt": time_of(sandbox.created_at),
        "lastUpdatedAt": time_of(sandbox.created_at if ended is None else ended),
        "metadata": {name: value for name, value in told.items() if value},
    }
    return model if ended is None else model | {"endedAt": time_of(ended)}
