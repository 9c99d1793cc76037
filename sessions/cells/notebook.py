"""Makes a notebook of a session's cells. Pure, and slow for large transcripts: call it in a thread.

Source: nbformat 4.5. Cells and outputs are plain dicts, which tests check against nbformat's schema: nbformat itself
validates each of them when it makes it, which takes seconds for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sessions.cells.outputs import Output, joined
from sessions.kernelspecs import KernelSpec


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """One cell as it was when the client asked for the notebook."""

    #: number among the session's cells, from 1
    number: int
    code: str
    execution_count: int | None
    outputs: Sequence[Output]


def notebook(cells: Sequence[NotebookCell], spec: KernelSpec) -> dict[str, Any]:
    """Return an nbformat 4.5 notebook.

    Args:
        cells: in order; a cell without code is left out.
        spec: kernelspec of the session's language.
    """
    from nbformat import v4  # noqa: PLC0415 - this import takes longer than the rest of the gateway's start

    metadata = {
        "kernelspec": {"name": spec.jupyter_name, "display_name": spec.display_name, "language": spec.name},
        "language_info": {"name": spec.name},
    }
    book: dict[str, Any] = v4.new_notebook(metadata=metadata)
    book["cells"] = [_cell(cell) for cell in cells if cell.code]
    return book


def _cell(cell: NotebookCell) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": f"cell-{cell.number}",
        "metadata": {},
        "source": cell.code,
        "execution_count": cell.execution_count,
        "outputs": [joined(output) for output in cell.outputs],
    }
