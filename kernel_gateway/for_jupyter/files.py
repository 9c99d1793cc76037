"""A contents manager for Jupyter Server whose root has a directory for each session of the gateway.

Source: the contents API of Jupyter Server (`AsyncContentsManager`). Lists and single changes go to the gateway's
`/api/contents`; the contents of files go through `/v1/sessions/{name}/files`, which has no limit of their size.
"""

from __future__ import annotations

import hashlib
import io
import os
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from typing import IO, Any

import nbformat
from jupyter_server.services.contents.checkpoints import AsyncCheckpoints
from jupyter_server.services.contents.manager import AsyncContentsManager
from tornado.web import HTTPError, RequestHandler
from traitlets import Type

from kernel_gateway.for_jupyter.downloads import DownloadHandler
from kernel_gateway.for_jupyter.requests import TRANSFER, answer, ask, file_place
from kernel_gateway.for_jupyter.uploads import Uploads

CONTENTS, SESSIONS = "api/contents", "v1/sessions"
DIRECTORY, FILE, NOTEBOOK = "directory", "file", "notebook"
#: bytes of a piece of a transfer
PIECE = 256 * 1024

Model = dict[str, Any]


class FileVersions(AsyncCheckpoints):
    """Earlier versions of files, which Jupyter calls checkpoints. The gateway keeps them beside the files."""

    async def create_checkpoint(self, _manager: object, path: str) -> Model:
        """Keep the file as it is now."""
        return _dated(await answer("POST", CONTENTS, path, "checkpoints"))

    async def restore_checkpoint(self, _manager: object, checkpoint_id: str, path: str) -> None:
        """Replace the file with its earlier version."""
        await ask("POST", CONTENTS, path, "checkpoints", checkpoint_id)

    async def list_checkpoints(self, path: str) -> list[Model]:
        """Return the file's earlier version, if there is one."""
        return [_dated(version) for version in await answer("GET", CONTENTS, path, "checkpoints")]

    async def delete_checkpoint(self, checkpoint_id: str, path: str) -> None:
        """Delete the earlier version."""
        await ask("DELETE", CONTENTS, path, "checkpoints", checkpoint_id)

    async def rename_all_checkpoints(self, _old_path: str, _new_path: str) -> None:
        """Do nothing: a renamed file begins without an earlier version, as in the gateway's own API."""

    async def delete_all_checkpoints(self, _path: str) -> None:
        """Do nothing: the earlier version of a deleted file stays, as in the gateway's own API."""


class SessionFiles(AsyncContentsManager):
    """The files of all sessions of one key. A notebook or folder that is made in the root gets a new session."""

    checkpoints_class = Type(FileVersions, config=True)
    files_handler_class = Type(DownloadHandler, klass=RequestHandler, config=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._uploads = Uploads()

    def info_string(self) -> str:
        """Return what the server logs when it starts."""
        return "Serving the files of the kernel gateway's sessions"

    def get_kernel_path(self, path: str, model: Model | None = None) -> str:  # noqa: ARG002 - Jupyter Server's name
        """Return the directory in which a notebook's kernel runs: the session's own, for `SessionKernels`."""
        return path.strip("/").partition("/")[0] if "/" in path.strip("/") else ""

    # -- what there is ----------------------------------------------------------------------------------------

    async def is_hidden(self, path: str) -> bool:
        """Return whether any name in the path begins with a dot."""
        return any(name.startswith(".") for name in path.strip("/").split("/"))

    async def dir_exists(self, path: str) -> bool:
        """Return whether there is a directory at the path."""
        return not path.strip("/") or await self._kind(path) == DIRECTORY

    async def file_exists(self, path: str) -> bool:
        """Return whether there is a file at the path. A file that is being uploaded counts."""
        path = path.strip("/")
        return path in self._uploads or (bool(path) and await self._kind(path) in {FILE, NOTEBOOK})

    async def _kind(self, path: str) -> str | None:
        try:
            return str((await self._described(path))["type"])
        except HTTPError as error:
            if error.status_code == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _described(self, path: str, query: str = "?content=0") -> Model:
        return _dated(await answer("GET", CONTENTS, path.strip("/"), query=query))

    async def get(
        self,
        path: str,
        content: bool = True,  # noqa: FBT001, FBT002 - Jupyter Server's signature
        type: str | None = None,  # noqa: A002 - as above
        format: str | None = None,  # noqa: A002 - as above
        require_hash: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> Model:
        """Return the model of a file or directory.

        Raises:
            HTTPError: when it does not exist, or is of another type or format.
        """
        path = path.strip("/")
        model = await self._described(path, f"?content=0&type={type}" if type else "?content=0")
        if model["type"] == DIRECTORY:
            if content:
                model = await self._described(path, "?content=1")
                model["content"] = [_dated(entry) for entry in model["content"]]
            return model | {"writable": True}
        if content or require_hash:
            data = (await ask("GET", *file_place(path), request_timeout=TRANSFER)).body
            if content:
                model |= self._notebook(data, path) if model["type"] == NOTEBOOK else _content(data, path, format)
            if require_hash:
                model |= {"hash": hashlib.sha256(data).hexdigest(), "hash_algorithm": "sha256"}
            if model["type"] == NOTEBOOK and content:
                self.validate_notebook_model(model)
        return model

    def _notebook(self, data: bytes, path: str) -> Model:
        try:
            notebook = nbformat.reads(data.decode(), as_version=4)
        except (ValueError, nbformat.ValidationError) as error:
            raise HTTPError(400, f"Unreadable Notebook: {path} {error!r}") from error
        self.mark_trusted_cells(notebook, path)
        return {"content": notebook, "format": "json"}

    # -- changes ------------------------------------------------------------------------------------------------

    async def save(self, model: Model, path: str = "") -> Model:
        """Write a file or notebook, a part of a file, or make a directory. Return its model without content.

        A directory in the root is a session of this name.

        Raises:
            HTTPError: when the model is not valid, or the path is not below a session's directory.
        """
        path, kind = path.strip("/"), model.get("type")
        if "/" not in path and kind == DIRECTORY:
            if not await self.dir_exists(path):
                await ask("POST", SESSIONS, body={"name": path})
            return await self.get(path, content=False)
        if "/" not in path:
            raise HTTPError(400, "files are in the directories of sessions: make a notebook or folder here to get one")
        self.run_pre_save_hooks(model=model, path=path)
        told: Model = {}
        if kind == DIRECTORY:
            await ask("PUT", CONTENTS, path, body={"type": DIRECTORY})
        elif kind == NOTEBOOK:
            notebook = nbformat.from_dict(model.get("content") or nbformat.v4.new_notebook())
            self.check_and_sign(notebook, path)
            told = self.validate_notebook_model(model | {"content": notebook})
            await _write(path, io.BytesIO(nbformat.writes(notebook, nbformat.NO_CONVERT).encode()))
        elif model.get("chunk") is None:
            await _write(path, io.BytesIO(_bytes(model)))
        elif (file := self._uploads.add(path, model["chunk"], _bytes(model))) is not None:
            with file:
                await _write(path, file)
        else:
            return _under_way(path)
        self.run_post_save_hooks(model=model, os_path=path)
        self.emit(data={"action": "save", "path": path})
        return await self.get(path, content=False) | {key: told[key] for key in ("message",) if key in told}

    async def new_untitled(self, path: str = "", type: str = "", ext: str = "") -> Model:  # noqa: A002 - Jupyter's name
        """Make a new file, notebook or directory; the gateway chooses its name. In the root, it gets a new session."""
        path = path.strip("/")
        if not path:
            path = str((await answer("POST", "api/kernels", body={}))["id"])
            if type == DIRECTORY:
                return await self.get(path, content=False)
        return _dated(await answer("POST", CONTENTS, path, body={"type": type or None, "ext": ext}))

    async def copy(self, from_path: str, to_path: str | None = None) -> Model:
        """Copy a file into a directory; the gateway chooses the name."""
        from_path = from_path.strip("/")
        target = from_path.rpartition("/")[0] if to_path is None else to_path.strip("/")
        copied = _dated(await answer("POST", CONTENTS, target, body={"copy_from": from_path}))
        self.emit(data={"action": "copy", "path": copied["path"], "source_path": from_path})
        return copied

    async def delete_file(self, path: str) -> None:
        """Delete a file or directory. A directory in the root goes with its session."""
        path = path.strip("/")
        await (ask("DELETE", CONTENTS, path) if "/" in path else ask("DELETE", SESSIONS, path))

    async def rename_file(self, old_path: str, new_path: str) -> None:
        """Rename a file or directory within its session, or a directory in the root that nobody has used yet.

        Raises:
            HTTPError: when there is something at the new path, or a session has been used.
        """
        old, new = old_path.strip("/"), new_path.strip("/")
        if "/" in old or "/" in new:
            await ask("PATCH", CONTENTS, old, body={"path": new})
        elif old != new:
            await _rename_unused(old, new)


async def _rename_unused(old: str, new: str) -> None:
    """Replace a session by one of another name. JupyterLab renames each new folder so, when its user types the name.

    Raises:
        HTTPError: when the session has been used, or another session has the new name.
    """
    described = await answer("GET", SESSIONS, old)
    used = described["incarnation"] > 1 or (await answer("GET", SESSIONS, old, "notebook"))["cells"]
    if used or (await answer("GET", SESSIONS, old, "files", "", query="?list"))["entries"]:
        raise HTTPError(400, f"{old} is a session with files or cells and keeps its name: make a new folder instead")
    await ask("POST", SESSIONS, body={"name": new, "language": described["language"]})
    await ask("DELETE", SESSIONS, old)


async def _write(path: str, content: IO[bytes]) -> None:
    size = content.seek(0, os.SEEK_END)
    content.seek(0)

    async def send(write: Callable[[bytes], Awaitable[None]]) -> None:
        while piece := content.read(PIECE):
            await write(piece)

    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    # The gateway says first whether there is room. Otherwise it would answer and close before it was sent everything,
    # and tornado's client would lose the answer.
    options = {"headers": headers, "request_timeout": TRANSFER, "expect_100_continue": True}
    await ask("PUT", *file_place(path), body_producer=send, **options)


def _dated(model: Model) -> Model:
    """Return a model with times in place of texts, as Jupyter Server's own contents managers have them."""
    times = {name: datetime.fromisoformat(model[name]) for name in ("created", "last_modified") if name in model}
    return model | times


def _content(data: bytes, path: str, asked: str | None) -> Model:
    """Return the fields of a model that describe a file's content: text if it is UTF-8, else base64."""
    if asked != "base64":
        try:
            return {"content": data.decode(), "format": "text", "mimetype": "text/plain"}
        except UnicodeDecodeError as error:
            if asked == "text":
                raise HTTPError(400, f"{path} is not UTF-8 encoded") from error
    return {"content": b64encode(data).decode(), "format": "base64", "mimetype": "application/octet-stream"}


def _bytes(model: Model) -> bytes:
    """Return the bytes of a file that is saved, or of a part of it.

    Raises:
        HTTPError: when the content does not have the format that the model names.
    """
    content = model.get("content") or ""
    if model.get("type") != FILE or not isinstance(content, str):
        raise HTTPError(400, "a file must be sent as text or base64")
    try:
        if model.get("format") == "base64":
            return b64decode("".join(content.split()), validate=True)
        return content.encode()
    except ValueError as error:
        raise HTTPError(400, f"the content is not of this format: {error}") from error


def _under_way(path: str) -> Model:
    """Return the model of a file whose upload is not complete."""
    now = datetime.now().astimezone()
    name = path.rpartition("/")[2]
    fields = dict.fromkeys(("size", "mimetype", "content", "format", "hash", "hash_algorithm"))
    return fields | {"name": name, "path": path, "type": FILE, "writable": True, "created": now, "last_modified": now}
