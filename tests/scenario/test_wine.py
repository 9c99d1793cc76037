"""An analysis in the way of a person or an agent: cell by cell, with a mistake, and again from the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests import gateways
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import size_of_png

SESSION = "wine"

LOAD = "from sklearn.datasets import load_wine\nframe = load_wine(as_frame=True).frame\nframe.shape"
LOOK = "frame[['alcohol', 'proline']].describe().round(2)"
COUNT = "frame['target'].value_counts().sort_index().tolist()"
SPLIT = """
from sklearn.model_selection import train_test_split
features, target = frame.drop(columns='target'), frame['target']
train, test, train_target, test_target = train_test_split(features, target, random_state=0, stratify=target)
print(len(train), len(test))
"""
FIT = """
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train, train_target)
accuracy = float(model.score(test, test_target))
round(accuracy, 3)
"""
PLOT = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(6, 4))
axes.scatter(frame['alcohol'], frame['color_intensity'], c=frame['target'])
axes.set(xlabel='alcohol', ylabel='color intensity')
plt.show()
"""
MISTAKE = "frame['colour_intensity'].mean()"
CORRECTION = "float(frame['color_intensity'].mean().round(3))"
COLUMNS = ("alcohol", "malic_acid", "ash", "magnesium", "total_phenols", "flavanoids", "hue", "proline", "target")
MORE = [f"print(frame['{column}'].mean().round(2))" for column in COLUMNS]
REMEMBER = "# once more\nround(accuracy, 3)"
CELLS = [LOAD, LOOK, COUNT, SPLIT, FIT, PLOT, MISTAKE, CORRECTION, *MORE, REMEMBER]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway with kernels in gVisor."""
    with gateways.gateway("docker", pool_size="1") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def replies(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """The replies to all cells of the analysis, which are sent one after the other."""
    return {code: gateway.execute(SESSION, code, timeout=120) for code in CELLS}


@pytest.mark.gate
@pytest.mark.engine
def test_each_cell_builds_on_earlier_cells(replies: dict[str, dict[str, Any]]) -> None:
    assert [reply["execution_count"] for reply in replies.values()] == list(range(1, len(replies) + 1))
    assert [reply["state"] for reply in replies.values()] == ["new", *["preserved"] * (len(replies) - 1)]
    assert text_of(replies[LOAD]) == "(178, 14)"
    assert text_of(replies[COUNT]) == "[59, 71, 48]"
    assert text_of(replies[SPLIT]) == "133 45\n"
    assert 0.9 <= float(text_of(replies[FIT])) <= 1


@pytest.mark.gate
@pytest.mark.engine
def test_tables_and_plots_are_rich_outputs(replies: dict[str, dict[str, Any]]) -> None:
    (table,) = replies[LOOK]["outputs"]
    assert table["data"]["text/html"].count("<tr") >= 8
    assert "13.00" in table["data"]["text/plain"]
    (picture,) = replies[PLOT]["outputs"]
    width, height = size_of_png(picture["data"]["image/png"])
    assert 300 <= height < width <= 1200
    assert "Figure" in picture["data"]["text/plain"]


@pytest.mark.gate
@pytest.mark.engine
def test_a_mistake_gives_an_error_and_loses_no_state(replies: dict[str, dict[str, Any]]) -> None:
    (error,) = replies[MISTAKE]["outputs"]
    assert (replies[MISTAKE]["status"], error["ename"], error["evalue"]) == ("error", "KeyError", "'colour_intensity'")
    assert (replies[CORRECTION]["status"], text_of(replies[CORRECTION])) == ("ok", "5.058")


@pytest.mark.gate
@pytest.mark.engine
def test_a_variable_is_still_there_ten_calls_later(replies: dict[str, dict[str, Any]]) -> None:
    assert CELLS.index(REMEMBER) - CELLS.index(FIT) > 10
    assert text_of(replies[REMEMBER]) == text_of(replies[FIT])


@pytest.mark.engine
def test_the_exported_notebook_gives_the_same_when_run_again(
    gateway: Gateway,
    replies: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported = gateway.call("GET", f"/v1/sessions/{SESSION}/notebook").text
    notebook = nbformat.reads(exported, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells] == list(replies)

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    again = nbformat.reads(exported, as_version=4)
    for cell in again.cells:
        cell.outputs = []
    NotebookClient(again, timeout=120, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(notebook.cells, again.cells, strict=True):
        assert told(after) == told(before)


@pytest.mark.engine
def test_a_replay_rebuilds_the_session_and_finds_every_output_again(
    gateway: Gateway, replies: dict[str, dict[str, Any]]
) -> None:
    report = gateway.call("POST", "/v1/replay", json={"from": SESSION, "as": "wine-again", "timeout": 120}).json()
    different = [cell for cell in report["cells"] if not cell["same"]]
    assert different == []
    assert (report["same"], report["skipped"], report["missing"]) == (len(CELLS), 0, 0)
    assert [cell["status"] for cell in report["cells"]] == [reply["status"] for reply in replies.values()]
    assert gateway.text("wine-again", "round(accuracy, 3), test.shape") == f"({text_of(replies[FIT])}, (45, 13))"


def told(cell: nbformat.NotebookNode) -> list[Any]:
    """Return the content of a cell's outputs: kinds, words and pictures' sizes, not the formatting."""
    return [
        (output.output_type, output.get("ename"), output.get("text"), words(output.get("data", {})))
        for output in cell.outputs
    ]


def words(data: dict[str, str]) -> tuple[Any, ...]:
    """Return a rich output's kinds, its words and the size of its picture."""
    return (data.keys(), data.get("text/plain", "").split(), "image/png" in data and size_of_png(data["image/png"]))
