"""Words that gateway and sandbox share stand once; files in other languages repeat them unchanged."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kernel_image import protocol
from sessions.backends.base import KERNEL_IMAGE

ROOT = KERNEL_IMAGE.parent
SPECS = KERNEL_IMAGE / "kernelspecs"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (SPECS / "python" / "programs.py", {protocol.RUN_MIME}),
        (SPECS / "javascript" / "run.js", {protocol.RUN_MIME}),
        (SPECS / "javascript" / "prelude.js", {protocol.FLUSHED, protocol.SETTLED}),
        (SPECS / "javascript" / "kernel.json", {protocol.FLUSHED}),
        (KERNEL_IMAGE / "python_kernel" / "kernel.py", protocol.GATEWAY_REQUESTS),
        (KERNEL_IMAGE / "python_kernel" / "extras.py", {protocol.EXTRAS}),
        (KERNEL_IMAGE / "python_kernel" / "formats.py", {protocol.CHART_MIME, protocol.DATA_MIME}),
        (KERNEL_IMAGE / "python_kernel" / "formats.py", {protocol.SAVED_IMAGES}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_kernel_runs_repeats_the_words_unchanged(file: Path, words: set[str]) -> None:
    quoted = set(re.findall(r"""["']([\w./+-]+)["']""", file.read_text().replace('\\"', '"')))
    assert words <= quoted


@pytest.mark.parametrize(
    "word",
    sorted(
        {protocol.RUN_MIME, protocol.FLUSHED, protocol.SETTLED, *protocol.GATEWAY_REQUESTS}
        | {protocol.EXTRAS, protocol.CHART_MIME, protocol.DATA_MIME, protocol.SAVED_IMAGES}
    ),
)
def test_the_gateway_writes_no_shared_word_itself(word: str) -> None:
    assert not [
        path.name
        for package in ("sessions", "kernel_gateway")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == word
    ]


def test_the_shared_words_are_plain_constants() -> None:
    body = ast.parse((KERNEL_IMAGE / "protocol.py").read_text()).body
    assert {type(node) for node in body[1:]} == {ast.Assign}
    assert isinstance(body[0], ast.Expr)


@pytest.mark.parametrize(
    "tool",
    [
        protocol.FILES_TOOL,
        protocol.PROCESSES_TOOL,
        protocol.ATTACHED_TOOL,
        protocol.WATCHING_TOOL,
        protocol.SEARCHING_TOOL,
    ],
)
def test_a_tool_has_the_name_of_its_module(tool: str) -> None:
    assert (KERNEL_IMAGE / f"{tool}.py").is_file()
