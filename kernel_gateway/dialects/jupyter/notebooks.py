"""Jupyter's sessions: which notebook uses which kernel. They are names for kernels, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from kernel_gateway.dialects.jupyter.base import RestHandler
from kernel_gateway.dialects.jupyter.kernels import start_kernel
from kernel_gateway.dialects.jupyter.models import (
    KernelOfSession,
    NotebookSession,
    StartKernel,
    kernel_id,
    kernel_model,
)
from kernel_gateway.handlers import Gateway
from sessions.errors import InvalidRequest, SessionNotFound
from sessions.session import Session

#: notebooks per tenant, of which several may share a kernel
NOTEBOOKS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Notebook:
    """One notebook's tie to a kernel."""

    path: str
    name: str
    type: str
    kernel: str
    id: str = field(default_factory=lambda: str(uuid4()))


class Notebooks:
    """All of them. One whose kernel is gone is gone with it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._all: dict[str, dict[str, Notebook]] = {}

    def of(self, tenant: str) -> dict[str, Notebook]:
        """A tenant's, by id."""
        alive = {kernel_id(session.key) for session in self._gateway.registry.of(tenant)}
        kept = {mark: book for mark, book in self._all.get(tenant, {}).items() if book.kernel in alive}
        self._all[tenant] = kept
        return kept

    def get(self, tenant: str, mark: str) -> Notebook:
        """One.

        Raises:
            SessionNotFound: there is none.
        """
        book = self.of(tenant).get(mark)
        if book is None:
            raise SessionNotFound(f"there is no session {mark[:64]}")
        return book

    def put(self, tenant: str, book: Notebook) -> None:
        """Add or change one."""
        books = self.of(tenant)
        if len(books) >= NOTEBOOKS_MAX and book.id not in books:
            raise InvalidRequest(f"at most {NOTEBOOKS_MAX} notebooks", field="path")
        books[book.id] = book

    def remove(self, tenant: str, mark: str) -> None:
        """Forget one."""
        self._all.get(tenant, {}).pop(mark, None)


class NotebookHandler(RestHandler):
    """What the handlers of notebook sessions share."""

    notebooks: Notebooks

    def initialize(self, gateway: Gateway, dialect: str = "none", notebooks: Notebooks | None = None) -> None:
        """Called by tornado with the route's keyword arguments."""
        super().initialize(gateway, dialect)
        if notebooks is not None:
            self.notebooks = notebooks

    def model(self, book: Notebook) -> dict[str, Any]:
        """A session as clients know it."""
        kernel = kernel_model(self.session(book.kernel))
        named = {"id": book.id, "path": book.path, "name": book.name, "type": book.type, "kernel": kernel}
        return named | ({"notebook": {"path": book.path, "name": book.name}} if book.type == "notebook" else {})

    async def kernel(self, asked: KernelOfSession | None) -> Session:
        """The kernel that is asked for.

        Raises:
            InvalidRequest: there is none of this id.
        """
        if asked is None or asked.id is None:
            return await start_kernel(self.gateway, self.tenant, StartKernel(name=asked.name if asked else None))
        try:
            return self.session(asked.id)
        except SessionNotFound as unknown:
            raise InvalidRequest(unknown.message, field="kernel.id") from None


class NotebooksHandler(NotebookHandler):
    """`/api/sessions`."""

    def get(self) -> None:
        """All of the tenant's."""
        self.finish_json([self.model(book) for book in self.notebooks.of(self.tenant).values()])

    async def post(self) -> None:
        """Tie a notebook to a kernel; a path that has one keeps it."""
        asked = self.body(NotebookSession)
        path = asked.any_path
        kind = asked.type or ("notebook" if asked.notebook else None)
        if not path or not kind:
            raise InvalidRequest("path and type are needed", field="path" if not path else "type")
        book = next((book for book in self.notebooks.of(self.tenant).values() if book.path == path), None)
        if book is None:
            session = await self.kernel(asked.kernel)
            book = Notebook(path, asked.name or "", kind, kernel_id(session.key))
            self.notebooks.put(self.tenant, book)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/api/sessions/{book.id}")
        self.finish_json(self.model(book))


class OneNotebookHandler(NotebookHandler):
    """`/api/sessions/{id}`."""

    def get(self, mark: str) -> None:
        """Describe it."""
        self.finish_json(self.model(self.notebooks.get(self.tenant, mark)))

    async def patch(self, mark: str) -> None:
        """Rename it, or give it another kernel; one that was made for it and replaced by a new one is ended."""
        book, asked = self.notebooks.get(self.tenant, mark), self.body(NotebookSession)
        name = book.name if asked.name is None else asked.name
        changed = replace(book, path=asked.any_path or book.path, name=name, type=asked.type or book.type)
        if asked.kernel is not None and (asked.kernel.id or asked.kernel.name):
            session = await self.kernel(asked.kernel)
            changed = replace(changed, kernel=kernel_id(session.key))
        self.notebooks.put(self.tenant, changed)
        if asked.kernel is not None and asked.kernel.name and asked.kernel.id is None:
            await self.gateway.registry.end(self.session(book.kernel).key)
        self.finish_json(self.model(changed))

    async def delete(self, mark: str) -> None:
        """Forget it, and end its kernel."""
        book = self.notebooks.get(self.tenant, mark)
        self.notebooks.remove(self.tenant, mark)
        await self.gateway.registry.end(self.session(book.kernel).key)
        self.set_status(HTTPStatus.NO_CONTENT)
