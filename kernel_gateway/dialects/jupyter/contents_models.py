"""Converts files to and from models of Jupyter's contents API, and makes names for new files. Pure functions.

Source: the contents API of Jupyter Server (`api.yaml`; its defaults for what that file does not define).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Any, Literal

import orjson
from pydantic import Field

from kernel_gateway.dialects.jupyter.models import Body
from sessions.guest.workspace import Entry
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest

DIRECTORY, FILE, NOTEBOOK = "directory", "file", "notebook"
#: last second of the year 9999, in seconds since 1970; later years do not have four digits
LATEST = 253_402_300_799
#: a notebook without cells
EMPTY_NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
#: beginning of the name of a new entry, by its kind
UNTITLED = {DIRECTORY: "Untitled Folder", NOTEBOOK: "Untitled", FILE: "untitled"}


class Saved(Body):
    """`PUT /api/contents/{path}`."""

    type: str | None = None
    format: Literal["text", "base64", "json"] | None = None
    content: Any = None
    #: path of the file according to the client; the path in the URL counts
    path: str | None = None
    copy_from: str | None = None
    #: number of a part of a large file
    chunk: int | None = None


class Created(Body):
    """`POST /api/contents/{path}`: a copy, or a new entry. The server chooses its name."""

    copy_from: str | None = None
    type: str | None = None
    ext: str = Field("", max_length=64)


class Moved(Body):
    """`PATCH /api/contents/{path}`."""

    path: str


def kind_of(path: str, asked: str | None = None) -> str:
    """Return `notebook` or `file`: the kind that the client asks for, else the kind that the file's name implies."""
    if asked in {FILE, NOTEBOOK}:
        return asked
    return NOTEBOOK if path.endswith(".ipynb") else FILE


def is_hidden(path: str) -> bool:
    """Return whether any name in the path begins with a dot."""
    return any(name.startswith(".") for name in path.split("/"))


def model_of(
    path: str, kind: str, modified: float, *, size: int | None = None, writable: bool = True
) -> dict[str, Any]:
    """Return the model of an entry without its content.

    Args:
        path: path of the entry in the API.
        kind: directory, file or notebook.
        modified: seconds since 1970.
        size: size in bytes. None means that the entry is not a file.
        writable: True if clients may change the entry, or make entries in it.
    """
    # Code in the sandbox can set the time of a file to any number.
    when = datetime.fromtimestamp(min(max(modified, 0), LATEST), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "name": PurePosixPath(path).name,
        "path": path,
        "type": kind,
        "writable": writable,
        "created": when,
        "last_modified": when,
        "size": size,
        "mimetype": None,
        "content": None,
        "format": None,
        "hash": None,
        "hash_algorithm": None,
    }


def entry_model(path: str, entry: Entry) -> dict[str, Any]:
    """Return the model of an entry in a session's workspace. A link is described as a file."""
    if entry["type"] == DIRECTORY:
        return model_of(path, DIRECTORY, entry["modified"])
    return model_of(path, kind_of(path), entry["modified"], size=entry["size"])


def content_of(path: str, kind: str, content: bytes, asked: str | None) -> dict[str, Any]:
    """Return the fields of a model that describe a file's content.

    Args:
        path: path of the file.
        kind: file or notebook.
        content: the file's bytes.
        asked: the format that the client asks for, `text` or `base64`. None means text for UTF-8, else base64.

    Raises:
        InvalidRequest: when the content is not a notebook, or not text, although the client asks for that.
    """
    if kind == NOTEBOOK:
        return {"content": orjson.Fragment(_checked_notebook(path, content)), "format": "json"}
    mimetype = guess_type(path)[0]
    if asked != "base64":
        try:
            return {"content": content.decode(), "format": "text", "mimetype": mimetype or "text/plain"}
        except UnicodeDecodeError:
            if asked == "text":
                raise InvalidRequest(f"{path} is not UTF-8 encoded", field="format") from None
    coded = base64.encodebytes(content).decode()
    return {"content": coded, "format": "base64", "mimetype": mimetype or "application/octet-stream"}


def _checked_notebook(path: str, content: bytes) -> bytes:
    """Check that a notebook is a JSON object, and return it.

    The notebook's schema is not checked, because that could take the gateway much time for a hostile notebook.
    """
    try:
        notebook = exact_json.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"Unreadable Notebook: {path}: {error.msg}", field="path") from None
    if not isinstance(notebook, dict):
        raise InvalidRequest(f"Unreadable Notebook: {path} is no JSON object", field="path")
    return content


def hash_of(content: bytes) -> dict[str, str]:
    """Return the fields of a model that identify a file's content."""
    return {"hash": hashlib.sha256(content).hexdigest(), "hash_algorithm": "sha256"}


def bytes_of(saved: Saved, kind: str) -> bytes:
    """Return the bytes of the file that a client saves.

    Raises:
        InvalidRequest: when the content does not have the format that the client names.
    """
    if kind == NOTEBOOK:
        notebook = EMPTY_NOTEBOOK if saved.content is None else saved.content
        if not isinstance(notebook, dict):
            raise InvalidRequest("the content of a notebook must be a JSON object", field="content")
        try:
            return exact_json.dumps(notebook, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError:  # orjson reads 1024 levels and writes 254
            raise InvalidRequest("the notebook is nested too deeply", field="content") from None
    content = "" if saved.content is None else saved.content
    if not isinstance(content, str) or (saved.format == "json") or (saved.content and saved.format is None):
        raise InvalidRequest("the content of a file must be a string, of the format text or base64", field="format")
    try:
        if saved.format != "base64":
            return content.encode()
        lines = content.replace("\r", "").replace("\n", "")  # clients get files as MIME's base64, which has line breaks
        return base64.b64decode(lines, validate=True)
    except ValueError:  # invalid base64, or text that has no UTF-8
        raise InvalidRequest("the content is not of this format", field="content") from None


def names(kind: str, ext: str) -> Iterator[str]:
    """Yield names for a new entry. The first free name is used."""
    first, gap = UNTITLED[kind], " " if kind == DIRECTORY else ""
    yield first + ext
    number = 0
    while True:
        number += 1
        yield f"{first}{gap}{number}{ext}"


def copy_names(path: str) -> Iterator[str]:
    """Yield names for a copy: first the file's own name, then names with a number. A copy of a copy has one number."""
    yield (name := PurePosixPath(path).name)
    stem, ext = PurePosixPath(name).stem, PurePosixPath(name).suffix
    base, mark, number = stem.rpartition("-Copy")
    stem = base if mark and number.isdigit() else stem
    count = 0
    while True:
        count += 1
        yield f"{stem}-Copy{count}{ext}"


def version_path(path: str) -> str:
    """Return the path of a file's earlier version. Jupyter Server uses the same path."""
    file = PurePosixPath(path)
    return str(file.parent / ".ipynb_checkpoints" / f"{file.stem}-checkpoint{file.suffix}")
