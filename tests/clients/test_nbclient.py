"""nbclient, nbconvert and papermill run a notebook on a kernel of the gateway, with its kernel manager for them.

`jupyter execute` cannot: it gives its client no configuration, and a kernel provisioner would need the kernel's ZMQ
sockets, which this gateway does not expose.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import papermill
import pytest
from jupyter_server.gateway.gateway_client import GatewayClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import v4

from kernel_gateway.for_jupyter import NotebookKernel
from tests.gateways import KEYS, Gateway

PAGE = Path(__file__).parents[2] / "docs/clients/jupyter.md"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def settings(gateway: Gateway) -> Iterator[None]:
    """Set the values of `--GatewayClient.url` and `--GatewayClient.auth_token`."""
    GatewayClient.clear_instance()
    GatewayClient.instance(url=gateway.url, auth_token=KEYS["alice"])
    yield
    GatewayClient.clear_instance()


def notebook(*cells: str) -> nbformat.NotebookNode:
    book: nbformat.NotebookNode = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


def run(book: nbformat.NotebookNode, **options: Any) -> list[list[Any]]:
    """Execute a notebook and return the outputs of its cells."""
    NotebookClient(book, kernel_manager_class=NotebookKernel, **{"timeout": 60} | options).execute()
    nbformat.validate(book)
    return [cell.outputs for cell in book.cells]


@pytest.mark.gate
def test_a_notebook_keeps_what_its_cells_show(gateway: Gateway) -> None:
    book = notebook(
        "x = 40\nprint('hello')\nx + 2",
        "import sys\nprint('a')\nprint('b', file=sys.stderr)",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        "from IPython.display import clear_output, display\nshown = display({'a': 1}, display_id='d')",
        "1 / 0",
        "shown.update('later')\nprint('gone')\nclear_output()\nx",
    )
    said, streams, plot, updated, failed, last = run(book, allow_errors=True)
    assert said == [
        {"output_type": "stream", "name": "stdout", "text": "hello\n"},
        {"output_type": "execute_result", "execution_count": 1, "data": {"text/plain": "42"}, "metadata": {}},
    ]
    # The stream that is flushed first may cut a line of the other one in two.
    texts = {name: "".join(output.text for output in streams if output.name == name) for name in ("stdout", "stderr")}
    assert texts == {"stdout": "a\n", "stderr": "b\n"}
    assert [output.output_type for output in plot] == ["display_data"]
    assert base64.b64decode(plot[0].data["image/png"]).startswith(PNG)
    assert updated == [{"output_type": "display_data", "data": {"text/plain": "'later'"}, "metadata": {}}]
    assert [(output.ename, output.evalue) for output in failed] == [("ZeroDivisionError", "division by zero")]
    assert failed[0].traceback[-1].endswith("ZeroDivisionError\x1b[39m: division by zero")
    assert [(output.output_type, output.data) for output in last] == [("execute_result", {"text/plain": "40"})]
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4, 5, 6]
    assert book.metadata.language_info.name == "python"
    assert gateway.kernels() == []


def test_a_notebook_stops_at_an_error(gateway: Gateway) -> None:
    book = notebook("1 / 0", "print('never')")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(book)
    assert [len(cell.outputs) for cell in book.cells] == [1, 0]
    assert gateway.kernels() == []


def test_a_cell_that_takes_too_long_is_interrupted(gateway: Gateway) -> None:
    book = notebook("import time\nx = 1\ntime.sleep(60)", "x")
    slow, after = run(book, timeout=5, interrupt_on_timeout=True, allow_errors=True)
    assert [output.ename for output in slow] == ["KeyboardInterrupt"]
    assert [output.data for output in after] == [{"text/plain": "1"}]
    assert gateway.kernels() == []


def test_a_cell_whose_kernel_dies_has_failed(gateway: Gateway) -> None:
    with pytest.raises(CellExecutionError, match="KernelDied"):
        run(notebook("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"))
    assert gateway.kernels() == []


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the notebook of the page's examples."""
    book = notebook("alpha = 1", "import os\nalpha, os.environ['KERNEL_GATEWAY_SESSION'] != ''")
    book.cells[0].metadata.tags = ["parameters"]
    nbformat.write(book, tmp_path / "in.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(language: str) -> str:
    """Return the example of the page in this language."""
    return PAGE.read_text().partition("## Whole notebooks")[2].split(f"```{language}\n")[1].split("```")[0]


def last_output(book: nbformat.NotebookNode) -> str:
    return str(book.cells[-1].outputs[0].data["text/plain"])


def test_nbconvert_runs_a_notebook_as_shown(gateway: Gateway, directory: Path) -> None:
    program = shown("sh").replace("http://127.0.0.1:8888", gateway.url).replace("=KEY", f"={KEYS['alice']}")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-e", "-c", program], env={"PATH": path, "HOME": str(directory)}, check=True)
    assert last_output(nbformat.read(directory / "out.ipynb", as_version=4)) == "(1, True)"
    assert gateway.kernels() == []


def test_nbclient_and_papermill_run_notebooks_as_shown(gateway: Gateway, directory: Path) -> None:
    book = nbformat.read(directory / "in.ipynb", as_version=4)
    exec(shown("python"), {"nbclient": nbclient, "papermill": papermill, "notebook": book})  # noqa: S102 - our own page
    assert last_output(book) == "(1, True)"
    assert last_output(nbformat.read(directory / "out.ipynb", as_version=4)) == "(5, True)"
    assert gateway.kernels() == []
