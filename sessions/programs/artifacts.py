"""Files that a program has left in `artifacts/` and that clients may get.

Source of the rules: the limits of RAGFlow's own executor, and one limit for all files together.
"""

from __future__ import annotations

from contextlib import suppress

from sessions.guest.reading import read_file
from sessions.guest.tools import WorkspaceOwner
from sessions.guest.workspace import Entry, list_files
from sessions.model.errors import FileNotFound, InvalidRequest
from sessions.programs.program import Artifact

FOLDER = "artifacts"
COUNT_MAX = 10
#: maximum bytes of one artifact, and of all artifacts together: they stay in memory until the client has them
BYTES_MAX = 10 * 1024**2
ALL_BYTES_MAX = 32 * 1024**2
#: MIME types of the files that clients may get, by suffix
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
    """Return the MIME type of a file with this name. None means that clients do not get such a file."""
    stem, dot, suffix = name.rpartition(".")
    return TYPES.get(suffix.lower()) if stem and dot and not name.startswith(".") else None


def chosen(entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Return the entries that clients get, sorted by name, and True if none was too large or too many."""
    fit = [entry for entry in entries if entry["type"] == "file" and entry["size"] > 0 and mime_type(entry["name"])]
    taken: list[Entry] = []
    size = 0
    for entry in sorted(fit, key=lambda entry: entry["name"]):
        if len(taken) < COUNT_MAX and entry["size"] <= min(BYTES_MAX, ALL_BYTES_MAX - size):
            taken.append(entry)
            size += entry["size"]
    return taken, len(taken) == len(fit)


async def collect(host: WorkspaceOwner) -> tuple[tuple[Artifact, ...], bool]:
    """Return a program's artifacts, and True if they are complete.

    Raises:
        SessionError: when the artifacts cannot be read.
    """
    try:
        listing = await list_files(host, FOLDER)
    except (FileNotFound, InvalidRequest):  # the program has removed or replaced the folder
        return (), True
    entries, complete = chosen(listing.entries)
    artifacts = []
    for entry in entries:
        # The file was removed since the listing, or its name is no valid path.
        with suppress(FileNotFound, InvalidRequest):
            artifacts.append(await _read(host, entry["name"]))
    return tuple(artifact for artifact in artifacts if artifact.content), complete and not listing.truncated


async def _read(host: WorkspaceOwner, name: str) -> Artifact:
    async with read_file(host, f"{FOLDER}/{name}") as file:
        if file.size > BYTES_MAX:
            raise InvalidRequest("it has grown since it was listed")
        content = b"".join([piece async for piece in file.content])
    return Artifact(name, str(mime_type(name)), content)
