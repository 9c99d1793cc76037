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


def test_the_gateway_writes_no_shared_word_itself() -> None:
    words = {protocol.RUN_MIME, protocol.FLUSHED, protocol.SETTLED, *protocol.GATEWAY_REQUESTS}
    words |= {protocol.EXTRAS, protocol.CHART_MIME, protocol.DATA_MIME, protocol.SAVED_IMAGES}
    texts = [path.read_text() for package in ("sessions", "kernel_gateway") for path in (ROOT / package).rglob("*.py")]
    some = [ast.walk(ast.parse(text)) for text in texts if any(word in text for word in words)]
    written = {node.value for nodes in some for node in nodes if isinstance(node, ast.Constant)}
    assert words & written == set()
    assert any(word in text for text in texts for word in words), "control: comments and longer texts name some"


def test_the_shared_words_are_plain_constants_and_need_only_the_standard_library() -> None:
    body = ast.parse((KERNEL_IMAGE / "protocol.py").read_text()).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    from_where = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert from_where == {"__future__", "struct", "collections.abc", "enum"}
    words = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert words == ["RelayFrame", "relay_frame", "take_relay_frames"]
    assert {type(node) for node in body[1:]} == {ast.Assign, ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef}


def test_whole_frames_are_taken_out_of_a_buffer_and_the_rest_stays() -> None:
    first = protocol.relay_frame(protocol.RelayFrame.DATA, 7, b"abc")
    second = protocol.relay_frame(protocol.RelayFrame.END, 8)
    buffer = bytearray(first + second + first[:-1])
    taken = [(protocol.RelayFrame.DATA, 7, b"abc"), (protocol.RelayFrame.END, 8, b"")]
    assert list(protocol.take_relay_frames(buffer)) == taken
    assert buffer == first[:-1]


@pytest.mark.parametrize(
    "head", [b"\x63\0\0\0\x01\0\0\0\0", b"\x03\0\0\0\x01\0\x00\x80\x01"], ids=["unknown kind", "too long"]
)
def test_a_frame_that_cannot_be_is_refused_before_its_content_arrives(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"too long|RelayFrame"):
        list(protocol.take_relay_frames(bytearray(head)))


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
