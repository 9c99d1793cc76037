"""Finds results that programs print themselves, in RAGFlow's format: `__RAGFLOW_RESULT__:` and base64. Pure."""

from __future__ import annotations

import base64
from typing import Any, Literal

from pydantic import BaseModel

from sessions.programs.outcomes import returned_by

PREFIX = "__RAGFLOW_RESULT__:"


class Marked(BaseModel):
    """The content of a marker line."""

    present: bool = False
    value: Any = None
    type: Literal["json"] = "json"


def split(stdout: str) -> tuple[str, Marked | None]:
    """Return the output without its marker lines, and the last marker. Invalid marker lines stay in the output."""
    if PREFIX not in stdout:
        return stdout, None
    kept, last = [], None
    for line in stdout.split("\n"):
        if not line.startswith(PREFIX):
            kept.append(line)
        elif encoded := line.removeprefix(PREFIX).strip():
            if (marked := _read(encoded)) is None:
                kept.append(line)
            else:
                last = marked
    return "\n".join(kept), last


def _read(encoded: str) -> Marked | None:
    try:
        read = returned_by(base64.b64decode(encoded, validate=True).decode())
        return None if read is None else Marked.model_validate(read.value)
    except ValueError:
        return None
