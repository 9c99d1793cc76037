"""Every line of the wall is listed in `tests/wall.py`, with a test that exists or a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutate
from tests.wall import WALL

PLACES = [(file, place) for file, places in WALL.items() for place in places]
SOURCE = """
LIMITS = "rw,size=1m"
def made(limits):
    if limits.open:
        return refuse(limits)
    held.most = 1
    return make(
        limits, name="x",
        host={"drop": [drop("ALL")], **{"memory": limits.memory}, "on": f"uid={limits.user},nosuid"},
        group=named(limits, parent="x"),
    )
"""


def labels(source: str, place: str) -> list[str]:
    return [line.label for line in mutate.lines(source, place)]


@pytest.mark.parametrize(("file", "place"), PLACES)
def test_every_line_of_the_wall_is_listed_and_no_other(file: str, place: str) -> None:
    assert labels((mutate.ROOT / file).read_text(), place) == sorted(
        WALL[file][place], key=labels((mutate.ROOT / file).read_text(), place).index
    )


def test_the_tests_that_find_a_loss_exist() -> None:
    for *_, change in mutate.mutations():
        path, _, test = change.by.partition("::")
        tree = ast.parse((mutate.ROOT / Path(path)).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not test or test.rpartition("::")[2].partition("[")[0] in names, change.by


def test_all_kinds_of_lines_are_found() -> None:
    assert labels(SOURCE, "LIMITS") == ["rw", "size=1m"]
    assert labels(SOURCE, "made") == [
        "if limits.open",
        "held.most",
        "name=",
        "host=",
        "drop",
        "drop('ALL')",
        "memory",
        "on",
        "uid={limits.user}",
        "nosuid",
        "group=",
        "parent=",
    ]


def test_each_line_can_be_taken_away_and_the_rest_stays() -> None:
    for place in ("LIMITS", "made"):
        for line in mutate.lines(SOURCE, place):
            rest = mutate.weakened(SOURCE, line, None)
            ast.parse(rest)
            assert len(rest) < len(SOURCE)
            assert SOURCE[: line.start] + SOURCE[line.end :] == rest.replace(line.without, "", 1) or line.without


def test_a_line_can_be_made_weaker() -> None:
    name = next(line for line in mutate.lines(SOURCE, "made") if line.label == "name=")
    assert 'make(\n        limits, name="y",\n' in mutate.weakened(SOURCE, name, 'name="y"')
