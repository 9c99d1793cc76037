"""Jupyter's contents API for the files of sessions. Its root has a directory for each session of the tenant.

Source: the contents API of Jupyter Server with default settings, for example with hidden entries that begin with a dot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.jupyter.contents_base import FilesHandler, below
from kernel_gateway.dialects.jupyter.contents_models import (
    DIRECTORY,
    FILE,
    NOTEBOOK,
    Created,
    Moved,
    Saved,
    bytes_of,
    content_of,
    copy_names,
    entry_model,
    hash_of,
    is_hidden,
    kind_of,
    model_of,
    names,
)
from sessions.guest import workspace
from sessions.model.errors import FileNotFound, InvalidRequest
from sessions.session.session import Session

#: permissions of new directories
MODE = 0o700
KINDS = frozenset({DIRECTORY, FILE, NOTEBOOK})


class ContentsHandler(FilesHandler):
    """`/api/contents/{path}`."""

    def _choice(self, name: str, allowed: set[str | None], default: str | None) -> str | None:
        chosen = self.get_query_argument(name, default)
        if chosen not in allowed:
            raise InvalidRequest(f"{name} {chosen!r} is invalid", field=name)
        return chosen

    async def get(self, path: str | None) -> None:
        """Return a file, or a directory with the models of its entries."""
        path = (path or "").strip("/")
        asked = self.get_query_argument("type", None)
        form = self._choice("format", {None, "text", "base64"}, None)
        content = self._choice("content", {"0", "1"}, "1") == "1"
        hashed = self._choice("hash", {"0", "1"}, "0") == "1"
        if is_hidden(path):
            raise FileNotFound(f"file or directory {path!r} does not exist")
        if not path:
            self.finish_json(self._sessions(content=content))
            return
        session, inner = self.place(path)
        entry = await workspace.stat_file(session, inner)
        model = entry_model(path, entry)
        if entry["type"] == DIRECTORY:
            if asked not in {None, DIRECTORY}:
                raise InvalidRequest(f"{path} is a directory, not a {asked}", field="type")
            if content:
                model |= await self._entries(session, path, inner)
        else:
            if asked == DIRECTORY:
                raise InvalidRequest(f"{path} is not a directory", field="type")
            model["type"] = kind_of(path, asked)
            if content or hashed:
                data = await self.content_at(session, inner)
                model |= content_of(path, model["type"], data, form) if content else {}
                model |= hash_of(data) if hashed else {}
        self.finish_json(model)

    def _sessions(self, *, content: bool) -> dict[str, Any]:
        """Return the model of the root, which has a directory for each session."""
        now = time.time()
        sessions = sorted(self.gateway.registry.of(self.tenant), key=lambda session: session.key.name)
        models = [model_of(session.key.name, DIRECTORY, now - session.idle_for()) for session in sessions]
        root = model_of(
            "", DIRECTORY, max((now - session.idle_for() for session in sessions), default=now), writable=False
        )
        return root | ({"content": models, "format": "json"} if content else {})

    async def _entries(self, session: Session, path: str, inner: str) -> dict[str, Any]:
        """Return the fields of a directory's model that describe its entries. The field `truncated` is our addition."""
        listing = await workspace.list_files(session, inner)
        shown = [entry for entry in listing.entries if entry["type"] != "special" and not is_hidden(entry["name"])]
        content = [entry_model(below(path, entry["name"]), entry) for entry in shown]
        return {"content": content, "format": "json", "truncated": listing.truncated}

    async def put(self, path: str | None) -> None:
        """Write a file or notebook, or make a directory. The client chooses the name."""
        path, saved = (path or "").strip("/"), self.body(Saved)
        if saved.copy_from:
            raise InvalidRequest("Cannot copy with PUT, only POST", field="copy_from")
        if saved.chunk is not None:
            raise InvalidRequest("files are saved in one piece; large ones as /v1/sessions/{name}/files", field="chunk")
        if is_hidden(saved.path or ""):
            raise InvalidRequest(f"Cannot create file or directory {saved.path!r}", field="path")
        session, inner = self.entry_place(path, "create")
        before = await self.found(session, inner)
        if saved.type == DIRECTORY:
            await workspace.make_directory(session, inner, MODE, parents=False)
        else:
            kind = kind_of(path) if saved.type is None else kind_of("", saved.type)
            await self.put_content(session, inner, bytes_of(saved, kind))
        await self._finish_entry(session, path, HTTPStatus.OK if before else HTTPStatus.CREATED)

    async def _finish_entry(self, session: Session, path: str, status: HTTPStatus) -> None:
        _, inner = self.place(path)
        self.finish_model(entry_model(path, await workspace.stat_file(session, inner)), status)

    async def post(self, path: str | None) -> None:
        """Copy a file into a directory, or make an empty entry there. The gateway chooses the name."""
        path, asked = (path or "").strip("/"), self.body(Created)
        if is_hidden(path) or is_hidden(asked.copy_from or ""):
            raise InvalidRequest(f"Cannot copy file or directory {path!r}", field="path")
        session, inner = self.place(path)
        if (await workspace.stat_file(session, inner))["type"] != DIRECTORY:
            raise InvalidRequest("Cannot POST to files, use PUT instead.", field="path")
        if asked.copy_from:
            content = await self.content_at(*self.entry_place(asked.copy_from.strip("/"), "copy"))
            name = await self._free(session, inner, copy_names(asked.copy_from))
            await self.put_content(session, below(inner, name), content)
        else:
            kind = asked.type if asked.type in KINDS else kind_of(asked.ext)
            ext = ".ipynb" if kind == NOTEBOOK else asked.ext
            name = await self._free(session, inner, names(kind, ext))
            if kind == DIRECTORY:
                await workspace.make_directory(session, below(inner, name), MODE, parents=False)
            else:
                await self.put_content(session, below(inner, name), bytes_of(Saved(), kind))
        await self._finish_entry(session, below(path, name), HTTPStatus.CREATED)

    async def _free(self, session: Session, inner: str, wanted: Iterator[str]) -> str:
        listing = await workspace.list_files(session, inner)
        if listing.truncated:
            raise InvalidRequest("the directory has too many entries to find a free name", field="path")
        taken = {entry["name"] for entry in listing.entries}
        return next(name for name in wanted if name not in taken)

    async def patch(self, path: str | None) -> None:
        """Rename an entry within its session."""
        path, new = (path or "").strip("/"), self.body(Moved).path.strip("/")
        (session, inner), (other, target) = self.entry_place(path, "rename"), self.entry_place(new, "rename")
        if session is not other:
            raise InvalidRequest("an entry cannot be moved to another session", field="path")
        if inner != target:
            await workspace.move_file(session, inner, target, replace=False)
        await self._finish_entry(session, new, HTTPStatus.OK)

    async def delete(self, path: str | None) -> None:
        """Delete an entry, and everything in it if it is a directory."""
        await workspace.delete_file(*self.entry_place((path or "").strip("/"), "delete"))
        self.set_status(HTTPStatus.NO_CONTENT)
