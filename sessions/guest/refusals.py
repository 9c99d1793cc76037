"""Turns a refusal of the files tool into an error. `kernel_image/files.py` defines the words of the refusals."""

from __future__ import annotations

from typing import Any, NoReturn

from sessions.model.errors import FileExists, FileNotFound, InvalidRequest, NoSpace


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the tool's answer, if the tool has not refused the operation.

    Raises:
        SessionError: when the tool has refused it; see `refuse`.
    """
    if "error" in answer:
        refuse(str(answer["error"]))
    return answer


def refuse(word: str) -> NoReturn:
    """Raise the error for a word of the tool.

    Raises:
        FileExists: when the path already has an entry.
        FileNotFound: when the path has no entry.
        InvalidRequest: when the path or the content cannot be used.
        NoSpace: when the workspace has no room.
    """
    match word:
        case "absent":
            raise FileNotFound
        case "full":
            raise NoSpace
        case "outside" | "link":
            raise InvalidRequest("path leads out of the workspace", field="path")
        case "directory":
            raise InvalidRequest("path names a directory", field="path")
        case "exists":
            raise FileExists
        case "special":
            raise InvalidRequest("path names neither a file nor a directory", field="path")
        case "incomplete":
            raise InvalidRequest("the content is shorter than announced", field="body")
        case "left":
            raise InvalidRequest(
                "the entry was copied to its new place, but not all of it could be deleted", field="path"
            )
        case "denied":
            raise InvalidRequest("the sandbox's user may not do this", field="path")
        case _:
            raise InvalidRequest("the path cannot be used", field="path")
