"""`/notebooks`: runs cells of a notebook file in a kernel of the sandbox, and writes their outputs into the file."""

from __future__ import annotations

from typing import Any

import orjson

from kernel_gateway.dialects.open_terminal.base import TerminalHandler
from kernel_gateway.dialects.open_terminal.desks import Notebook
from kernel_gateway.dialects.open_terminal.files import TEXT_MAX, whole, write_whole
from kernel_gateway.dialects.open_terminal.models import Cell, Path
from sessions.model import exact_json
from sessions.model.errors import FileExists, InvalidRequest, SessionNotFound
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, Status
from sessions.sandbox.sandbox import Sandbox

#: seconds that a cell may run, at most as long as any cell. Source: Open Terminal 0.14.5
CELL_SECONDS = 120.0
#: languages by the names that Jupyter gives to their kernels
KERNELS = {"python3": "python", "ir": "r"}


async def cells_of(sandbox: Sandbox, path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a notebook, and its cells, which are parts of it.

    Raises:
        InvalidRequest: when the file is no notebook of the format 4.
        FileNotFound: when there is no such file.
    """
    try:
        notebook = exact_json.loads(await whole(sandbox, path))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"Invalid notebook: {error.msg}", field="path") from None
    match notebook:
        case {"nbformat": 4, "cells": [*cells]} if all(isinstance(cell, dict) for cell in cells):
            return notebook, notebook["cells"]
    raise InvalidRequest("Invalid notebook: it must have the format 4", field="path")


def kernel_of(notebook: dict[str, Any]) -> str:
    """Return the name of the kernel that a notebook asks for."""
    match notebook:
        case {"metadata": {"kernelspec": {"name": str(name)}}}:
            return name[:64]
    return "python3"


class NotebooksHandler(TerminalHandler):
    """`/notebooks`."""

    async def post(self) -> None:
        """Open a notebook: start a kernel for it."""
        await self.run_until_client_leaves(self._open(self.body(Path)))

    async def _open(self, body: Path) -> None:
        sandbox = await self.sandbox()
        desk, path = self.desk(sandbox), self.absolute(sandbox, body.path)
        kernel = kernel_of((await cells_of(sandbox, path))[0])
        with desk.opening():
            session = await sandbox.create_session(KERNELS.get(kernel, kernel), path.rpartition("/")[0])
            notebook = Notebook(path, session.key.name, kernel)
            desk.add_notebook(notebook)
        self.finish_json({"id": notebook.id, "kernel": kernel, "status": "ready"})


class OneNotebookHandler(TerminalHandler):
    """`/notebooks/{id}`."""

    async def get(self, name: str) -> None:
        """Describe an open notebook."""
        notebook = self.desk(await self.sandbox()).notebook(name)
        status = "busy" if notebook.busy else "ready"
        self.finish_json({"id": notebook.id, "path": notebook.path, "kernel": notebook.kernel, "status": status})

    async def delete(self, name: str) -> None:
        """Close a notebook: end its kernel."""
        sandbox = await self.sandbox()
        notebook = self.desk(sandbox).notebook(name)
        self.desk(sandbox).close_notebook(notebook)
        await self.gateway.registry.end(SessionKey(self.tenant, notebook.session))
        self.finish_json({"status": "stopped"})


class CellHandler(TerminalHandler):
    """`/notebooks/{id}/execute`."""

    async def post(self, name: str) -> None:
        """Run a cell, and write its outputs into the file."""
        await self.run_until_client_leaves(self._run(name, self.body(Cell)))

    async def _run(self, name: str, body: Cell) -> None:
        sandbox = await self.sandbox()
        notebook = self.desk(sandbox).notebook(name)
        if notebook.busy:
            raise FileExists("Cell already executing")
        try:
            with notebook.running():
                result = await self._run_cell(sandbox, notebook, body)
        except SessionNotFound:
            self.desk(sandbox).close_notebook(notebook)
            raise
        status = "ok" if result.status is Status.OK else "error"
        answer = {"status": status, "execution_count": result.execution_count, "outputs": result.outputs}
        self.finish_json(answer | ({"error": f"{result.error.message} ({result.error.code})"} if result.error else {}))

    async def _run_cell(self, sandbox: Sandbox, notebook: Notebook, body: Cell) -> ExecutionResult:
        content, cells = await cells_of(sandbox, notebook.path)
        if not 0 <= body.cell_index < len(cells):
            raise InvalidRequest(f"cell_index {body.cell_index} out of range (0..{len(cells) - 1})", field="cell_index")
        cell = cells[body.cell_index]
        if cell.get("cell_type") != "code":
            raise InvalidRequest("this cell has no code", field="cell_index")
        if body.source is not None:
            cell["source"] = body.source
        source = cell.get("source", "")
        code = "".join(map(str, source)) if isinstance(source, list) else str(source)
        request = ExecuteRequest(code, min(CELL_SECONDS, sandbox.spec.max_execute_timeout))
        async with sandbox.session(notebook.session).execute(request) as execution:
            result = await execution.result()
        cell["outputs"], cell["execution_count"] = result.outputs, result.execution_count
        await write_whole(sandbox, notebook.path, _written(content, cell))
        return result


def _written(notebook: dict[str, Any], cell: dict[str, Any]) -> bytes:
    """Return a notebook as a file. Outputs of a cell with which it could not be read again are left out.

    Raises:
        InvalidRequest: when the notebook could not be read again even so.
    """
    if (text := _encoded(notebook)) is None:
        limits = f"have more than {TEXT_MAX >> 20} MiB, or be nested too deeply"
        note = f"The outputs are left out: with them the notebook would {limits}.\n"
        cell["outputs"] = [{"output_type": "stream", "name": "stderr", "text": note}]
        text = _encoded(notebook)
    if text is None:
        raise InvalidRequest("the cell has run, but the notebook is too large or too deep to be written", field="path")
    return text


def _encoded(notebook: dict[str, Any]) -> bytes | None:
    """Return a notebook as a file, or None if it could not be read again."""
    try:
        text = exact_json.dumps(notebook)
    except orjson.JSONEncodeError:  # it is nested too deeply
        return None
    return text if len(text) <= TEXT_MAX else None
