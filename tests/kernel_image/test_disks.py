"""The program that makes disks: whose request waits for whose, and where it looks for a disk."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_image import disks

#: runs the programs that make file systems
REAL_RUN = disks._run
#: seconds for another request to be served meanwhile
MEANWHILE = 20.0


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory of images, without loop devices and without programs that make file systems."""
    umask = os.umask(0o077)  # the program sets its own, which would stay for the tests that follow
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disks, "_RESERVE", 0)
    monkeypatch.setattr(disks, "_last", {})
    monkeypatch.setattr(disks, "_run", lambda *_command, **_options: "")
    monkeypatch.setattr(disks, "_attach", lambda file: f"/dev/{file}")
    monkeypatch.setattr(disks, "_attached", lambda _file: None)
    yield tmp_path
    os.umask(umask)


def served(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *requests: dict[str, Any]) -> list[Any]:
    """Let the program serve requests, numbered from 0, and return its answers in their order in time."""
    said = "".join(json.dumps({"id": number, **request}) + "\n" for number, request in enumerate(requests))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(said.encode())))
    disks.main()
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def attach(name: str) -> dict[str, Any]:
    return {"op": "attach", "name": name, "size": 1024, "mode": "0700"}


@pytest.mark.parametrize("slow", ["mke2fs", "e2fsck"])
def test_a_disk_that_is_made_or_repaired_delays_only_requests_about_itself(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, images: Path, slow: str
) -> None:
    if slow == "e2fsck":
        (images / "slow.img").touch()
    other = threading.Event()

    def run(*command: str, **_options: Any) -> str:
        if command[0] == slow and command[-1].startswith("slow"):
            assert other.wait(MEANWHILE), "the request about another disk is not served meanwhile"
        return ""

    def attached(file: str) -> str:
        if file == "other.img":
            other.set()
        return f"/dev/{file}"

    monkeypatch.setattr(disks, "_run", run)
    monkeypatch.setattr(disks, "_attach", attached)
    requests = attach("slow"), {"op": "delete", "name": "slow"}, attach("other"), attach("slow")
    answers = served(capfd, monkeypatch, *requests)
    assert sorted(answer["id"] for answer in answers) == [0, 1, 2, 3]
    assert answers[0].items() >= {"device": "/dev/other.img", "id": 2}.items()
    assert {answer["device"] for answer in answers if answer["id"] in {0, 3}} == {"/dev/slow.img"}


def test_disks_that_are_made_at_the_same_time_are_not_promised_the_same_room(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    room = 5 * 1024**2  # for four small disks
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=room, f_frsize=1))
    answers = served(capfd, monkeypatch, *(attach(str(number)) for number in range(12)))
    refused = [answer for answer in answers if "no room" in answer.get("error", "")]
    assert (len(answers), len(refused), len(list(images.iterdir()))) == (12, 8, 4)


def test_the_room_for_all_disks_is_what_is_free_and_what_they_have_taken(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    (images / "other.img").write_bytes(b"x" * 64 * 1024)
    taken = 512 * (images / "other.img").stat().st_blocks
    monkeypatch.setattr(disks, "_RESERVE", 10 * 1024**2)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=15 * 1024**2, f_frsize=1))
    for _ in range(2):  # it is made, and found again
        (answer,) = served(capfd, monkeypatch, attach("own"))
        own = 512 * (images / "own.img").stat().st_blocks
        assert answer["room"] == 5 * 1024**2 + taken + own


def test_a_disk_is_looked_for_where_it_was_before_all_other_devices_are_opened(
    monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(images)
    at, looked = "/dev/loop7", []

    def shows(device: str, _file: str) -> bool:
        looked.append(device)
        return device == at

    monkeypatch.setattr(disks, "_shows", shows)
    monkeypatch.setattr(disks, "_last", {})
    monkeypatch.setattr(os, "listdir", lambda _path: [f"loop{number}" for number in range(9)])
    assert disks._attached("a.img") == at
    assert len(looked) == 8, "control: it is not known yet"
    looked.clear()
    assert disks._attached("a.img") == at
    assert looked == [at]
    at = "/dev/loop3"
    assert disks._attached("a.img") == at, "it has another device since"


def test_a_disk_has_small_groups_and_no_journal(monkeypatch: pytest.MonkeyPatch, images: Path) -> None:
    """Without a journal Linux looks, for each new file, at all inodes of its group that were freed lately."""
    monkeypatch.setattr(disks, "_run", REAL_RUN)
    disks._make("own.img", 512 * 1024**2, "0700")
    shown = subprocess.run(
        ["dumpe2fs", "-h", images / "own.img"], env=disks._TOOLS, check=True, capture_output=True, text=True
    ).stdout
    assert "has_journal" not in shown
    per_group = re.search(r"Inodes per group: +(\d+)", shown)
    assert per_group is not None
    assert int(per_group[1]) <= 2_048


def test_a_repaired_disk_shows_no_file_that_the_session_has_not_made(
    monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    monkeypatch.setattr(disks, "_run", REAL_RUN)
    disks._make("own.img", 16 * 1024**2, "0700")

    def debugfs(said: str) -> str:
        command = ("debugfs", "-w", "-f", "-", str(images / "own.img"))
        done = subprocess.run(command, env=disks._TOOLS, input=said, check=True, capture_output=True, text=True)
        return str(done.stdout)

    debugfs("set_super_value state 0\nmkdir kept\n")  # as after a crash, and in the copy of a disk in use
    disks._answer({"op": "attach", "name": "own", "size": 0, "mode": "0700"})
    assert re.findall(r"\) (\w[\w+]*)", debugfs("ls /\n")) == ["kept"]
