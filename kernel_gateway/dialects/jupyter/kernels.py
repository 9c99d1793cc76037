"""The REST API for kernels and kernelspecs."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from importlib.metadata import version
from mimetypes import guess_type
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from kernel_gateway.dialects.jupyter.base import RestHandler
from kernel_gateway.dialects.jupyter.models import (
    KERNEL_ID,
    StartKernel,
    find,
    kernel_id,
    kernel_model,
    spec_model,
    time_ago,
)
from kernel_gateway.gateway import Gateway
from sessions.guest.paths import sandbox_path, valid_path
from sessions.model.errors import InvalidRequest, SessionExists, SessionNotFound
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import SessionKey, valid_env
from sessions.session.session import Session

#: the permissions that a client asks about: actions by resource
PERMISSIONS = TypeAdapter(dict[str, list[str]])


async def start_kernel(gateway: Gateway, tenant: str, asked: StartKernel, place: str) -> Session:
    """Start a kernel and return its session. If a kernel has the requested id already, return that kernel's session.

    Args:
        gateway: the parts of the gateway.
        tenant: tenant of the client.
        asked: body of the request.
        place: path of the notebook or directory that uses the kernel, on the client's machine; see `SessionSpec`.

    Raises:
        InvalidRequest: when the kernelspec is unknown, or the id, the directory or the idle timeout is not valid.
        SessionExists: when there is a kernel with this id, of another kernelspec.
        SessionError: when the kernel could not be started.
    """
    name = asked.kernel_id or str(uuid4())
    if not KERNEL_ID.fullmatch(name):
        raise InvalidRequest("kernel_id must have the form of a UUID", field="kernel_id")
    try:
        session = find(gateway.registry, tenant, name)
    except SessionNotFound:
        cwd = sandbox_path(asked.cwd) if asked.cwd else valid_path(asked.path or "")
        idle_timeout = gateway.settings.valid_idle_timeout(asked.idle_timeout)
        env = valid_env(asked.wanted_env)
        spec = replace(gateway.registry.defaults_of(tenant), env=env, cwd=cwd, idle_timeout=idle_timeout, place=place)
        if asked.name:
            spec = replace(spec, language=asked.name)
        return await gateway.registry.create(SessionKey(tenant, name), spec)
    if asked.name and gateway.registry.language(asked.name) != session.kernelspec.name:
        raise SessionExists(f"the kernel with this id runs {session.kernelspec.name}, and not {asked.name[:64]}")
    return session


class VersionHandler(RestHandler):
    """`/api`."""

    def get(self) -> None:
        """Return the version of the gateway."""
        self.finish_json({"version": version("sandboxed-kernel-gateway")})


class StatusHandler(RestHandler):
    """`/api/status`."""

    def get(self) -> None:
        """Return the number of the tenant's kernels and connections, and the times of its sessions."""
        sessions = self.gateway.registry.of(self.tenant)
        self.finish_json(
            {
                "started": time_ago(max((session.age() for session in sessions), default=0.0)),
                "last_activity": time_ago(min((session.idle_for() for session in sessions), default=0.0)),
                "kernels": len(sessions),
                "connections": sum(session.channels.clients for session in sessions),
            }
        )


class MeHandler(RestHandler):
    """`/api/me`."""

    def get(self) -> None:
        """Return the caller's identity, and those of the requested `permissions` that the caller has: all of them.

        Raises:
            InvalidRequest: when `permissions` is not a JSON object with a list of actions for each resource.
        """
        try:
            asked = PERMISSIONS.validate_json(self.get_query_argument("permissions", "") or "{}", strict=True)
        except ValidationError:
            raise InvalidRequest(
                'permissions should be a JSON dict of {"resource": ["action",]}', field="permissions"
            ) from None
        names = dict.fromkeys(("username", "name", "display_name"), self.tenant)
        initials = self.tenant[:2].upper()
        self.finish_json(
            {
                "identity": names | {"initials": initials, "avatar_url": None, "color": None},
                "permissions": asked | {"updatable_fields": []},
            }
        )


class KernelSpecsHandler(RestHandler):
    """`/api/kernelspecs`."""

    def get(self) -> None:
        """Return the kernelspecs of the installed languages. Before the first proof of the sandbox, return all."""
        specs, inventory = self.gateway.specs, self.gateway.inventory()
        default = specs.find(self.gateway.registry.defaults.language)
        there = [spec for spec in specs.all if inventory is None or inventory.version(spec)]
        models = {spec.jupyter_name: spec_model(spec) for spec in there}
        self.finish_json({"default": default.jupyter_name, "kernelspecs": models})


class KernelSpecBaseHandler(RestHandler):
    """A request about one kernelspec."""

    def spec(self, name: str) -> KernelSpec:
        """Return the kernelspec of this name.

        Raises:
            SessionNotFound: when no kernelspec has this name.
        """
        try:
            return self.gateway.specs.find(name)
        except InvalidRequest as unknown:
            raise SessionNotFound(unknown.message) from None


class KernelSpecHandler(KernelSpecBaseHandler):
    """`/api/kernelspecs/{name}`."""

    def get(self, name: str) -> None:
        """Return one kernelspec."""
        self.finish_json(spec_model(self.spec(name)))


class LogoHandler(KernelSpecBaseHandler):
    """`/kernelspecs/{name}/{file}`."""

    def get(self, name: str, file: str) -> None:
        """Send a logo of a kernelspec."""
        logo = next((logo for logo in self.spec(name).logos.values() if logo.name == file), None)
        if logo is None:
            raise SessionNotFound(f"the kernelspec has no {file[:64]}")
        self.set_header("Content-Type", guess_type(logo.name)[0] or "application/octet-stream")
        self.finish(logo.read_bytes())


class KernelsHandler(RestHandler):
    """`/api/kernels`."""

    def get(self) -> None:
        """List the tenant's kernels, also those that were started through another dialect."""
        self.finish_json([kernel_model(session) for session in self.gateway.registry.of(self.tenant)])

    async def post(self) -> None:
        """Start a kernel."""
        asked = self.body(StartKernel)
        session = await start_kernel(self.gateway, self.tenant, asked, asked.place)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/api/kernels/{kernel_id(session.key)}")
        self.finish_json(kernel_model(session))


class KernelHandler(RestHandler):
    """`/api/kernels/{id}`."""

    def get(self, asked: str) -> None:
        """Describe the kernel."""
        self.finish_json(kernel_model(self.session(asked)))

    async def delete(self, asked: str) -> None:
        """End the kernel."""
        await self.gateway.registry.end(self.session(asked).key)
        self.set_status(HTTPStatus.NO_CONTENT)


class InterruptHandler(RestHandler):
    """`/api/kernels/{id}/interrupt`."""

    urgent = frozenset({"POST"})

    async def post(self, asked: str) -> None:
        """Interrupt the running cell. The variables are kept."""
        await self.session(asked).interrupt()
        self.set_status(HTTPStatus.NO_CONTENT)


class RestartHandler(RestHandler):
    """`/api/kernels/{id}/restart`."""

    async def post(self, asked: str) -> None:
        """Restart the kernel under the same id."""
        session = self.session(asked)
        await session.restart()
        self.finish_json(kernel_model(session))
