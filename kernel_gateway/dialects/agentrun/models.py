"""Models of the dialect's requests and answers. Unknown fields are ignored, because clients have several versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.config import Settings
from kernel_gateway.http.request_body import validated
from kernel_gateway.times import rfc3339
from sessions.model.errors import InvalidRequest
from sessions.model.values import SandboxSpec, valid_env
from sessions.sandbox.sandbox import Sandbox
from sessions.store.templates import Template

#: the template that every tenant has
DEFAULT_TEMPLATE = "code-interpreter-v1"
CODE_INTERPRETER: Literal["CodeInterpreter"] = "CodeInterpreter"
_MIB = 1024**2
#: seconds
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: at most an exabyte, so that the number of bytes is exact as a float
_Mebibytes = Annotated[float, Field(gt=0, le=1024**4)]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="ignore")


class TemplateBody(BaseModel):
    """A template. The gateway stores and returns all fields, also those that it does not use."""

    model_config = ConfigDict(extra="allow")

    templateName: str = ""  # noqa: N815 - the wire's names
    templateType: Literal["CodeInterpreter"] = CODE_INTERPRETER  # noqa: N815
    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory: _Mebibytes | None = None
    diskSize: _Mebibytes | None = None  # noqa: N815
    sandboxIdleTimeoutInSeconds: _Seconds | None = None  # noqa: N815
    sandboxTTLInSeconds: _Seconds | None = None  # noqa: N815
    environmentVariables: dict[str, str] | None = None  # noqa: N815
    ossConfiguration: list[Any] | None = None  # noqa: N815
    nasConfig: Any = None  # noqa: N815

    def checked(self) -> TemplateBody:
        """Check that sandboxes can be made from this template, and return it.

        Raises:
            InvalidRequest: when they cannot.
        """
        refuse_mounts(ossConfiguration=self.ossConfiguration, nasConfig=self.nasConfig)
        valid_env(self.environmentVariables or {})
        return self


class CreateSandbox(Body):
    """A sandbox to create."""

    templateName: str  # noqa: N815
    sandboxId: str | None = None  # noqa: N815
    sandboxIdleTimeoutSeconds: _Seconds | None = None  # noqa: N815
    sandboxIdleTimeoutInSeconds: _Seconds | None = None  # noqa: N815
    nasConfig: Any = None  # noqa: N815
    ossMountConfig: Any = None  # noqa: N815
    polarFsConfig: Any = None  # noqa: N815

    def spec(self, template: Template, settings: Settings) -> SandboxSpec:
        """Return the spec of the sandbox. Limits above the gateway's own limits are lowered to them.

        Raises:
            InvalidRequest: when the body or the template asks for something that the gateway does not offer.
        """
        refuse_mounts(nasConfig=self.nasConfig, ossMountConfig=self.ossMountConfig, polarFsConfig=self.polarFsConfig)
        wanted, own = validated(TemplateBody, template.content), settings.limits
        idle = self.sandboxIdleTimeoutSeconds or self.sandboxIdleTimeoutInSeconds or wanted.sandboxIdleTimeoutInSeconds
        return SandboxSpec(
            template=template.name,
            template_id=template.id,
            limits=own.narrowed(
                {
                    "memory": _at_most(own.memory, wanted.memory, _MIB),
                    "cpus": min(own.cpus, wanted.cpu or own.cpus),
                    "disk": _at_most(own.disk, wanted.diskSize, _MIB),
                }
            ),
            env=valid_env(wanted.environmentVariables or {}),
            idle_timeout=min(idle or settings.idle_timeout, settings.max_idle_timeout),
            lifetime=wanted.sandboxTTLInSeconds or 0.0,
            max_execute_timeout=settings.max_execute_timeout,
        )


def _at_most(limit: int, wanted: float | None, unit: int) -> int:
    return limit if wanted is None else max(1, min(limit, int(wanted * unit)))


def refuse_mounts(**wanted: Any) -> None:
    """Refuse mounts. If the gateway ignored them, files that code writes there would be lost.

    Args:
        wanted: wanted mounts, by the field of the request.

    Raises:
        InvalidRequest: when the client wants a mount.
    """
    for field, value in wanted.items():
        if value:
            raise InvalidRequest(f"{field}: nothing can be mounted into sandboxes here", field=field)


class CreateContext(Body):
    """A context to create."""

    language: str | None = None
    cwd: str | None = None


class Execute(Body):
    """Code to execute."""

    code: str
    contextId: str | None = None  # noqa: N815
    language: str | None = None
    timeout: _Seconds | None = None
    #: arguments for the function `main` that the code defines; the vendor's service does not have this field
    arguments: dict[str, Any] | None = None


class WriteFile(Body):
    """A file to write."""

    path: str
    content: str
    mode: str | None = None
    encoding: str | None = None
    createDir: bool = True  # noqa: N815


class MakeDirectory(Body):
    """A directory to make."""

    path: str
    parents: bool = True
    mode: str | None = None


class Move(Body):
    """An entry to move."""

    source: str
    destination: str


class Remove(Body):
    """An entry to remove."""

    path: str


class Command(Body):
    """A command to run."""

    command: str
    cwd: str | None = None
    timeout: _Seconds | None = None


def template_model(template: Template) -> dict[str, Any]:
    """Return a template as clients see it."""
    content = {"templateType": CODE_INTERPRETER, "description": "", **template.content}
    return content | {
        "templateId": template.id,
        "templateName": template.name,
        "status": "READY",
        "createdAt": rfc3339(template.created_at),
        "lastUpdatedAt": rfc3339(template.updated_at),
    }


def sandbox_model(sandbox: Sandbox) -> dict[str, Any]:
    """Return a sandbox as clients see it."""
    end = sandbox.end
    idle_timeout = round(sandbox.spec.idle_timeout)
    told = {"reason": end and end.reason, "filesLost": sandbox.loss}
    model = {
        "sandboxId": sandbox.key.name,
        "templateId": sandbox.spec.template_id,
        "templateName": sandbox.spec.template,
        "templateType": CODE_INTERPRETER,
        "status": "READY" if end is None else "TERMINATED",
        "sandboxIdleTimeoutSeconds": idle_timeout,
        "sandboxIdleTimeoutInSeconds": idle_timeout,
        "sandboxIdleTTLInSeconds": idle_timeout,
        "createdAt": rfc3339(sandbox.created_at),
        "lastUpdatedAt": rfc3339(sandbox.created_at if end is None else end.at),
        "metadata": {name: value for name, value in told.items() if value},
    }
    return model if end is None else model | {"endedAt": rfc3339(end.at)}
