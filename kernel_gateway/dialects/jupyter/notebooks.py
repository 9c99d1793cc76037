"""Jupyter's sessions, `/api/sessions`, which record the kernel of each notebook.

A Jupyter session is not a session of this gateway: several of them may share a kernel. Here it is called a *notebook*.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from kernel_gateway.dialects.jupyter.base import RestHandler
from kernel_gateway.dialects.jupyter.kernels import start_kernel
from kernel_gateway.dialects.jupyter.models import (
    KERNEL_ID,
    KernelOfSession,
    NotebookSession,
    StartKernel,
    kernel_id,
    kernel_model,
    place_of,
)
from kernel_gateway.gateway import Gateway
from sessions.model.errors import InvalidRequest, SessionError, SessionNotFound
from sessions.session.session import Session

#: field of a request with the name of the kernelspec
KERNEL_NAME = "kernel.name"
#: maximum number of notebooks per tenant. The number of kernels does not limit it, because notebooks may share a kernel
NOTEBOOKS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Notebook:
    """One notebook and the kernel that it uses."""

    path: str
    name: str
    type: str
    kernel: str
    id: str = field(default_factory=lambda: str(uuid4()))


class Notebooks:
    """The notebooks of all tenants. A notebook is dropped when its kernel has ended."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._all: dict[str, dict[str, Notebook]] = {}

    def of(self, tenant: str) -> dict[str, Notebook]:
        """Return a tenant's notebooks by id."""
        alive = {kernel_id(session.key) for session in self._gateway.registry.of(tenant)}
        kept = {notebook_id: book for notebook_id, book in self._all.get(tenant, {}).items() if book.kernel in alive}
        self._all[tenant] = kept
        return kept

    def get(self, tenant: str, notebook_id: str) -> Notebook:
        """Return the notebook with this id.

        Raises:
            SessionNotFound: when the tenant has no notebook with this id.
        """
        book = self.of(tenant).get(notebook_id)
        if book is None:
            raise SessionNotFound(f"Session not found: session_id={notebook_id[:64]!r}")
        return book

    def at(self, tenant: str, path: str) -> Notebook | None:
        """Return the notebook with this path, or None."""
        return next((book for book in self.of(tenant).values() if book.path == path), None)

    def require_room(self, tenant: str) -> None:
        """Check that the tenant may have one more notebook.

        Raises:
            InvalidRequest: when the tenant has `NOTEBOOKS_MAX` notebooks.
        """
        if len(self.of(tenant)) >= NOTEBOOKS_MAX:
            raise InvalidRequest(f"at most {NOTEBOOKS_MAX} notebooks", field="path")

    def put(self, tenant: str, book: Notebook) -> None:
        """Add or change a notebook."""
        self.of(tenant)[book.id] = book

    def remove(self, tenant: str, notebook_id: str) -> None:
        """Forget a notebook."""
        self._all.get(tenant, {}).pop(notebook_id, None)


class NotebookHandler(RestHandler):
    """Base of the handlers of notebook sessions."""

    notebooks: Notebooks

    def initialize(self, gateway: Gateway, dialect: str = "none", notebooks: Notebooks | None = None) -> None:
        """Set up the handler. Tornado calls this with the route's keyword arguments."""
        super().initialize(gateway, dialect)
        if notebooks is not None:
            self.notebooks = notebooks

    def model(self, book: Notebook) -> dict[str, Any]:
        """Return a notebook session as clients see it."""
        kernel = kernel_model(self.session(book.kernel))
        named = {"id": book.id, "path": book.path, "name": book.name, "type": book.type, "kernel": kernel}
        return named | ({"notebook": {"path": book.path, "name": book.name}} if book.type == "notebook" else {})

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 501 for an unknown kernelspec, as Jupyter Server does."""
        unknown = failure.details.get("field") == KERNEL_NAME
        return HTTPStatus.NOT_IMPLEMENTED if unknown else super().status_of(failure)

    async def kernel(self, asked: KernelOfSession, path: str) -> tuple[Session, bool]:
        """Return the session of the requested kernel, and whether it was started for this request.

        Args:
            asked: the kernel that the client asks for.
            path: path of the notebook.

        Raises:
            InvalidRequest: when there is no kernelspec of the requested name.
        """
        if asked.id is not None and self.exists(asked.id):
            return self.session(asked.id), False
        try:
            self.gateway.specs.find(asked.name or self.gateway.registry.defaults.language)
        except InvalidRequest as unknown:
            raise InvalidRequest(unknown.message, field=KERNEL_NAME) from None
        # In the older format clients send words such as "foo", which are not valid in the paths of other requests.
        wanted = asked.id if asked.id and KERNEL_ID.fullmatch(asked.id) else None
        start = StartKernel(name=asked.name, kernel_id=wanted)
        return await start_kernel(self.gateway, self.tenant, start, place_of(path)), True

    def exists(self, kernel: str) -> bool:
        """Return whether the tenant has a kernel with this id."""
        with suppress(SessionNotFound):
            return bool(self.session(kernel))
        return False

    async def end(self, kernel: str) -> None:
        """End a kernel unless a notebook uses it, and wait for its end. An ended kernel is not an error."""
        if kernel not in (book.kernel for book in self.notebooks.of(self.tenant).values()):
            with suppress(SessionNotFound):
                await self.gateway.registry.end(self.session(kernel).key)


class NotebooksHandler(NotebookHandler):
    """`/api/sessions`."""

    def get(self) -> None:
        """List the tenant's notebook sessions."""
        self.finish_json([self.model(book) for book in self.notebooks.of(self.tenant).values()])

    async def post(self) -> None:
        """Give a notebook a kernel. A path that already has a kernel keeps it."""
        asked = self.body(NotebookSession)
        path, kind = asked.any_path, asked.kind
        if not path or not kind:
            raise InvalidRequest("path and type are required", field="path" if not path else "type")
        book = self.notebooks.at(self.tenant, path)
        if book is None:
            self.notebooks.require_room(self.tenant)
            session, new = await self.kernel(asked.kernel or KernelOfSession(), path)
            book = self.notebooks.at(self.tenant, path)
            if book is None:
                book = Notebook(path, asked.name or "", kind, kernel_id(session.key))
                self.notebooks.put(self.tenant, book)
            elif new:  # another request for the same path was faster
                await self.end(kernel_id(session.key))
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/api/sessions/{book.id}")
        self.finish_json(self.model(book))


class OneNotebookHandler(NotebookHandler):
    """`/api/sessions/{id}`."""

    def get(self, notebook_id: str) -> None:
        """Describe the notebook session."""
        self.finish_json(self.model(self.notebooks.get(self.tenant, notebook_id)))

    async def patch(self, notebook_id: str) -> None:
        """Rename the notebook, or give it another kernel and end its old one."""
        book, asked = self.notebooks.get(self.tenant, notebook_id), self.body(NotebookSession)
        name = book.name if asked.name is None else asked.name
        changed = replace(book, path=asked.any_path or book.path, name=name, type=asked.kind or book.type)
        if asked.kernel is not None and (asked.kernel.id or asked.kernel.name):
            if asked.kernel.id is not None and not self.exists(asked.kernel.id):
                raise InvalidRequest(f"No such kernel: {asked.kernel.id[:64]}", field="kernel.id")
            session, new = await self.kernel(asked.kernel, changed.path)
            changed = replace(changed, kernel=kernel_id(session.key))
            if book.id not in self.notebooks.of(self.tenant) and new:
                await self.end(changed.kernel)  # the notebook was deleted meanwhile
            self.notebooks.get(self.tenant, notebook_id)
        self.notebooks.put(self.tenant, changed)
        if changed.kernel != book.kernel:
            await self.end(book.kernel)
        self.finish_json(self.model(changed))

    async def delete(self, notebook_id: str) -> None:
        """Forget the notebook and end its kernel."""
        book = self.notebooks.get(self.tenant, notebook_id)
        self.notebooks.remove(self.tenant, notebook_id)
        await self.end(book.kernel)
        self.set_status(HTTPStatus.NO_CONTENT)
