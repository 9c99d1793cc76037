"""Makes a notebook of a session's cells, piece by piece. Pure; see `FairLoop` in `kernel_gateway` for why in pieces.

Source: nbformat 4.5. Cells and outputs are plain dicts, which tests check against nbformat's schema: nbformat itself
validates each of them when it makes it, which takes seconds for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessions.cells.outputs import joined
from sessions.cells.packed import PackedOutputs
from sessions.model import exact_json
from sessions.model.errors import SessionError
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import StateChange, StateNotice

#: bytes of a piece; only a single large output makes a larger piece. A piece of small outputs takes about 1 ms.
PIECE = 32 * 1024
#: tags of a cell that a return to a checkpoint has undone. nbclient leaves out cells with the second one.
UNDONE = ("rolled-back", "skip-execution")
#: what the notebook says where the variables changed between two cells, before the reason
_CHANGED = {
    StateChange.LOST: "The variables of the cells above are gone: ",
    StateChange.RESTARTED: "The variables of the cells above are gone: ",
    StateChange.ROLLED_BACK: f"The cells above with the tag `{UNDONE[0]}` are undone: ",
}


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """One cell as it was when the client asked for the notebook."""

    #: number among the session's cells, from 1
    number: int
    code: str = ""
    execution_count: int | None = None
    outputs: PackedOutputs = field(default_factory=PackedOutputs)
    #: what has happened to the variables between the cell before and this cell. None means nothing.
    before: StateNotice | None = None
    #: why the gateway ended the cell, or why its kernel ended. None means neither.
    error: SessionError | None = None
    #: names of the environment variables that were set for this cell only
    variables: str = ""
    #: whether a return to a checkpoint has undone the cell
    undone: bool = False
    #: whether its kernel no longer runs it
    ended: bool = True


def notebook(cells: Sequence[NotebookCell], spec: KernelSpec) -> Iterator[bytes]:
    """Return an nbformat 4.5 notebook as JSON, in pieces.

    It has a text cell wherever another kernel that runs only the cells above would have other variables.

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
    yield from with_list({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata}, "cells", _cells(cells))


def _cells(cells: Sequence[NotebookCell]) -> Iterator[Iterable[bytes]]:
    last = 0
    for cell in cells:
        if text := _before(cell, missing=cell.number - last - 1):
            yield [_text(f"before-{cell.number}", text)]
        if cell.code:
            yield _cell(cell)
        last = cell.number


def _before(cell: NotebookCell, missing: int) -> str:
    """Return what the notebook says before a cell, as Markdown. It is empty if there is nothing to say.

    Args:
        cell: the cell.
        missing: number of cells before it that are not in the notebook.
    """
    told = []
    if missing:
        told.append(
            f"Cells that ran here and are not in this notebook: {missing}. They are not kept any more, or never were."
        )
    if cell.before is not None and cell.before.reason:
        told.append(f"{_CHANGED.get(cell.before.change, '')}{cell.before.reason}")
    if cell.variables:
        told.append(f"The next cell ran with environment variables of its own: {cell.variables}")
    return "\n\n".join(f"**kernel-gateway:** {text}" for text in told)


def _text(cell_id: str, source: str) -> bytes:
    return exact_json.dumps({"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source})


def _cell(cell: NotebookCell) -> Iterator[bytes]:
    fields: dict[str, Any] = {
        "cell_type": "code",
        "id": f"cell-{cell.number}",
        "metadata": _metadata(cell),
        "source": cell.code,
        "execution_count": cell.execution_count,
    }
    return with_list(fields, "outputs", ([exact_json.dumps(output)] for output in _outputs(cell)))


def _metadata(cell: NotebookCell) -> dict[str, Any]:
    """Return what programs can rely on: unlike the text of outputs, a kernel cannot write it."""
    tags: dict[str, Any] = {"tags": UNDONE} if cell.undone else {}
    if cell.error is None:
        return tags
    error = {"code": cell.error.code, "name": cell.error.name, "message": cell.error.message}
    return tags | {"kernel_gateway": {"error": error}}


def _outputs(cell: NotebookCell) -> Iterator[dict[str, Any]]:
    yield from map(joined, cell.outputs)
    if cell.error is not None:
        text = f"\n[kernel-gateway {cell.error.code}: {cell.error.message}]\n"
        yield {"output_type": "stream", "name": "stderr", "text": text}


def with_list(
    fields: dict[str, Any],
    name: str,
    items: Iterable[Iterable[bytes]],
    last: Callable[[], dict[str, Any]] | None = None,
) -> Iterator[bytes]:
    """Yield a JSON object in fragments: first its fields, then a list, whose items are given as fragments, too.

    Args:
        fields: the fields before the list.
        name: the list's name.
        items: the list.
        last: returns the fields behind the list; called after its last item.
    """
    yield exact_json.dumps(fields).removesuffix(b"}") + b',"%b":[' % name.encode()
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item
    yield b"]" + (b"}" if last is None else b"," + exact_json.dumps(last()).removeprefix(b"{"))
