"""Stored files: uploads before a run, downloads and lists after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from http import HTTPStatus
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any

from kernel_gateway.dialects.librechat.base import CodeHandler, owner_of
from kernel_gateway.http.multipart import FILE, Form
from kernel_gateway.http.transfers import send_file
from kernel_gateway.http.uploads import UploadHandler
from kernel_gateway.times import rfc3339
from sessions.file_store.store import Place, StoredFile, new_id
from sessions.guest.paths import session_path
from sessions.guest.reading import OpenFile
from sessions.model.errors import InvalidRequest, SessionError

#: files of one upload
BATCH_MAX = 200


class OneUploadHandler(CodeHandler, UploadHandler):
    """`upload`."""

    most = 1
    _form: Form

    def prepare(self) -> None:
        """Check the request and prepare the form, before the body is read."""
        super().prepare()
        self._stored: list[StoredFile] = []
        self._batch = new_id()
        if self.request.method == "POST":
            self._form = self.expect_form(_path, self.most)

    def writer(self, path: str, size: int | None) -> Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, int]]:
        """Return what stores a file. The fields of the form before it say whose it is."""
        del size
        fields = self._form.fields
        owner = owner_of(self.user, fields.get("kind", "user"), fields.get("id", ""), fields.get("version"))
        read_only = fields.get("kind") == "skill" or fields.get("read_only") == "true"
        return partial(self._store, Place(self.tenant, owner, self._batch), path, read_only)

    async def _store(self, place: Place, path: str, read_only: bool, content: AsyncIterator[bytes]) -> int:  # noqa: FBT001
        file = await self.gateway.file_store.write(place, path, content, read_only=read_only)
        self._stored.append(file)
        return file.size

    def refuse(self, refusal: SessionError) -> None:
        """Stop storing. Files of a refused upload are not kept: the client does not learn their ids."""
        super().refuse(refusal)
        for file in self._stored:
            self.gateway.file_store.delete(file)

    async def post(self) -> None:
        """Answer with the ids of the files."""
        self.check_upload()
        files = [{"fileId": file.id, "filename": file.name} for file in self._stored]
        self.finish_json({"message": "success", "storage_session_id": self._batch, "files": files})


class BatchHandler(OneUploadHandler):
    """`upload/batch`."""

    most = BATCH_MAX

    async def post(self) -> None:
        """Answer with the ids of the files: all are stored, or none."""
        self.check_upload()
        files = [{"status": "success", "filename": file.name, "fileId": file.id} for file in self._stored]
        counts = {"succeeded": len(files), "failed": 0}
        self.finish_json({"message": "success", "storage_session_id": self._batch, "files": files} | counts)


class DownloadHandler(CodeHandler):
    """`download/{batch}/{id}`."""

    async def get(self, batch: str, file_id: str) -> None:
        """Send a file."""
        file = self.gateway.file_store.find(self.place(batch), file_id)
        content = self.gateway.file_store.read(file)
        opened = OpenFile(file.size, file.created_at, "0", 0, file.size, content, partial=False)
        await send_file(self, opened, file.name)


class ObjectHandler(CodeHandler):
    """`sessions/{batch}/objects/{id}`."""

    def get(self, batch: str, file_id: str) -> None:
        """Describe a file. LibreChat sends it again if it is gone."""
        file = self.gateway.file_store.find(self.place(batch), file_id)
        told = {"originalFilename": file.name, "contentType": _media_type(file), "readOnly": file.read_only}
        self.finish_json(_described(file) | told)


class ListHandler(CodeHandler):
    """`files/{batch}`."""

    def get(self, batch: str) -> None:
        """List the files of a batch, in one of four forms."""
        files = self.gateway.file_store.of(self.place(batch))
        form = _FORMS.get(self.raw_argument("detail") or "simple")
        if form is None:
            raise InvalidRequest(f"detail must be one of {', '.join(_FORMS)}", field="detail")
        self.finish_json([form(file) for file in files])


class FileHandler(CodeHandler):
    """`files/{batch}/{id}`."""

    def delete(self, batch: str, file_id: str) -> None:
        """Delete a file."""
        file = self.gateway.file_store.find(self.place(batch), file_id)
        self.gateway.file_store.delete(file)
        self.set_status(HTTPStatus.NO_CONTENT)


def _path(name: str) -> str:
    """Return the path of a file below `/mnt/data`. It keeps the directories of its name."""
    if not (path := session_path(name)):
        raise InvalidRequest("the file has no name", field=FILE)
    return path


def _key(file: StoredFile) -> str:
    return f"{file.place.batch}/{file.id}{PurePosixPath(file.name).suffix}"


def _media_type(file: StoredFile) -> str:
    return guess_type(file.name)[0] or "application/octet-stream"


def _described(file: StoredFile) -> dict[str, Any]:
    return {"name": _key(file), "size": file.size, "lastModified": rfc3339(file.created_at), "etag": file.id}


def _full(file: StoredFile) -> dict[str, Any]:
    return _described(file) | {"metadata": {"original-filename": file.name, "content-type": _media_type(file)}}


def _normalized(file: StoredFile) -> dict[str, Any]:
    told = {"id": file.id, "name": file.name, "storage_session_id": file.place.batch, "size": file.size}
    more = {"contentType": _media_type(file), "lastModified": rfc3339(file.created_at), "read_only": file.read_only}
    return told | more


#: value of `detail` → how a file is listed
_FORMS: dict[str, Callable[[StoredFile], Any]] = {
    "simple": _key,
    "summary": _described,
    "full": _full,
    "normalized": _normalized,
}
