"""Files that a program has left in `artifacts/`, as far as they are handed out.

Source of the rules: the limits of RAGFlow's own executor, and one for all of them together.
"""

from __future__ import annotations

from contextlib import suppress

from sessions.errors import FileNotFound, InvalidRequest
from sessions.oneshot import Artifact
from sessions.tools import Place
from sessions.workspace import Entry, list_files, read_file

FOLDER = "artifacts"
COUNT_MAX = 10
#: bytes of one, and of all: they are held in memory until the client has them
BYTES_MAX = 10 * 1024**2
ALL_BYTES_MAX = 32 * 1024**2
#: what is handed out, by the end of its name
TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "csv": "text/csv",
    "json": "application/json",
    "html": "text/html",
}


def mime_type(name: str) -> str | None:
    """What a file of this name is; None: nothing that is handed out."""
    stem, dot, suffix = name.rpartition(".")
    return TYPES.get(suffix.lower()) if stem and dot and not name.startswith(".") else None


def chosen(entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Those of a folder's entries that are handed out, by name; and whether none was too large or too many."""
    fit = [entry for entry in entries if entry["type"] == "file" and entry["size"] > 0 and mime_type(entry["name"])]
    taken: list[Entry] = []
    size = 0
    for entry in sorted(fit, key=lambda entry: entry["name"]):
        if len(taken) < COUNT_MAX and entry["size"] <= min(BYTES_MAX, ALL_BYTES_MAX - size):
            taken.append(entry)
            size += entry["size"]
    return taken, len(taken) == len(fit)


async def collect(place: Place) -> tuple[tuple[Artifact, ...], bool]:
    """A program's artifacts; and whether they are all there.

    Raises:
        SessionError: they cannot be read.
    """
    try:
        entries, complete = chosen(await list_files(place, FOLDER))
    except (FileNotFound, InvalidRequest):  # the program has made something else of it
        return (), True
    artifacts = []
    for entry in entries:
        with suppress(FileNotFound, InvalidRequest):  # gone since it was listed, or of a name that nobody can write
            artifacts.append(await _read(place, entry["name"]))
    return tuple(artifact for artifact in artifacts if artifact.content), complete


async def _read(place: Place, name: str) -> Artifact:
    async with read_file(place, f"{FOLDER}/{name}") as file:
        if file.size > BYTES_MAX:
            raise InvalidRequest("it has grown since it was listed")
        content = b"".join([piece async for piece in file.content])
    return Artifact(name, str(mime_type(name)), content)
