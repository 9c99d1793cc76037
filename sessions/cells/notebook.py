"""Makes a notebook of a session's cells, piece by piece. Pure; see `FairLoop` in `kernel_gateway` for why in pieces.

Source: nbformat 4.5. Cells and outputs are plain dicts, which tests check against nbformat's schema: nbformat itself
validates each of them when it makes it, which takes seconds for many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sessions.cells.outputs import joined
from sessions.cells.packed import PackedOutputs
from sessions.model import exact_json
from sessions.model.kernelspecs import KernelSpec

#: bytes of a piece; only a single large output makes a larger piece. A piece of small outputs takes about 1 ms.
PIECE = 32 * 1024


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """One cell as it was when the client asked for the notebook."""

    #: number among the session's cells, from 1
    number: int
    code: str
    execution_count: int | None
    outputs: PackedOutputs


def notebook(cells: Sequence[NotebookCell], spec: KernelSpec) -> Iterator[bytes]:
    """Return an nbformat 4.5 notebook as JSON, in pieces.

    Args:
        cells: cells in order. A cell without code is left out.
        spec: kernelspec of the session's language.
    """
    return in_pieces(_fragments(cells, spec))


def in_pieces(fragments: Iterable[bytes]) -> Iterator[bytes]:
    """Yield fragments of JSON in pieces of about `PIECE` bytes, or more for a large fragment."""
    piece = bytearray()
    for fragment in fragments:
        piece += fragment
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _fragments(cells: Sequence[NotebookCell], spec: KernelSpec) -> Iterator[bytes]:
    metadata = {
        "kernelspec": {"name": spec.jupyter_name, "display_name": spec.display_name, "language": spec.name},
        "language_info": {"name": spec.name},
    }
    yield from with_list(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata},
        "cells",
        (_cell(cell) for cell in cells if cell.code),
    )


def _cell(cell: NotebookCell) -> Iterator[bytes]:
    fields: dict[str, Any] = {
        "cell_type": "code",
        "id": f"cell-{cell.number}",
        "metadata": {},
        "source": cell.code,
        "execution_count": cell.execution_count,
    }
    return with_list(fields, "outputs", ([exact_json.dumps(joined(output))] for output in cell.outputs))


def with_list(fields: dict[str, Any], name: str, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield a JSON object in fragments: first its fields, then a list, whose items are given as fragments, too."""
    yield exact_json.dumps(fields).removesuffix(b"}") + b',"%b":[' % name.encode()
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item
    yield b"]}"
