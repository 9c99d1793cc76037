"""The memory, processor time and weight of a container, in the host's control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.backends.docker.engine.cgroup import ControlGroup, parent_for, weigh_all

ID = "0123abcd" * 8
#: path of the container's group in each tree of version 1
V1 = f"kernels.slice/{ID}"


@pytest.mark.parametrize(
    "place",
    [
        f"kernels.slice/{ID}/memory.current",
        f"kernels.slice/docker-{ID}.scope/memory.current",
        f"memory/kernels.slice/{ID}/memory.usage_in_bytes",
        f"memory/kernels.slice/docker-{ID}.scope/memory.usage_in_bytes",
    ],
)
def test_the_memory_count_is_found_at_every_known_path_and_ends_with_the_container(tmp_path: Path, place: str) -> None:
    count = ControlGroup(ID, tmp_path)
    assert count.memory() is None
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    for size in (1, 268435456):
        file.write_text(f"{size}\n")
        assert count.memory() == size
    file.unlink()
    assert count.memory() is None


def test_the_memory_count_of_another_container_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "kernels.slice" / ("f" * 64) / "memory.current"
    file.parent.mkdir(parents=True)
    file.write_text("1\n")
    assert ControlGroup(ID, tmp_path).memory() is None


#: file of the processor time and its text, file of the weight beside it, and its text for one half and for the least
GROUPS = [
    (f"kernels.slice/docker-{ID}.scope/cpu.stat", "usage_usec 2500000\nuser_usec 1\n", "cpu.weight", "5000", "1"),
    (f"kernels.slice/{ID}/cpu.stat", "usage_usec 2500000\nuser_usec 1\n", "cpu.weight", "5000", "1"),
    (f"cpuacct/{V1}/cpuacct.usage", "2500000000\n", f"../../../cpu/{V1}/cpu.shares", "51200", "2"),
]


@pytest.mark.parametrize("files", GROUPS, ids=["systemd", "cgroupfs", "version 1"])
def test_a_container_gives_way_where_linux_knows_that(tmp_path: Path, files: tuple[str, str, str, str, str]) -> None:
    time, _, weight, _, _ = files
    file = ((tmp_path / time).parent / weight).resolve().with_name("cpu.idle")
    file.parent.mkdir(parents=True)
    group = ControlGroup(ID, tmp_path)
    assert not group.give_way(always=True)  # Linux before 5.15 has no such file
    assert not file.exists()
    file.write_text("0\n")
    for always, text in ((True, "1"), (False, "0")):
        assert group.give_way(always=always)
        assert file.read_text() == text


@pytest.mark.parametrize("files", GROUPS, ids=["systemd", "cgroupfs", "version 1"])
def test_processor_time_is_read_and_a_weight_is_set(tmp_path: Path, files: tuple[str, str, str, str, str]) -> None:
    time, used, weight, half, least = files
    group = ControlGroup(ID, tmp_path)
    assert group.seconds() is None
    group.weigh(0.5)  # the container is gone: nothing to set
    file = tmp_path / time
    file.parent.mkdir(parents=True)
    file.write_text(used)
    assert group.seconds() == 2.5
    wanted = (file.parent / weight).resolve()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.write_text("77\n")
    for share, value in ((0.5, half), (1e-9, least)):
        group.weigh(share)
        assert wanted.read_text() == value
    wanted.write_text(f"{least}\n")
    group.weigh(1e-9)
    assert wanted.read_text() == f"{least}\n"  # not written again
    wanted.write_text("77\n")
    group.weigh(1e-9)
    assert wanted.read_text() == least  # something else had set it


@pytest.mark.parametrize(
    ("name", "usual", "tenth"),
    [("kernels.slice/cpu.weight", "100", "10"), ("cpu/kernels.slice/cpu.shares", "1024", "102")],
    ids=["version 2", "version 1"],
)
def test_all_kernels_have_a_weight_together(tmp_path: Path, name: str, usual: str, tenth: str) -> None:
    weigh_all(0.1, tmp_path)  # there is no kernel: nothing to set
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    for _ in range(2):  # the second time after systemd has read its files again
        file.write_text(f"{usual}\n")
        weigh_all(0.1, tmp_path)
        assert file.read_text() == tenth
    written = file.stat().st_mtime_ns
    weigh_all(0.1, tmp_path)
    assert file.stat().st_mtime_ns == written


@pytest.mark.parametrize(("driver", "parent"), [("systemd", "kernels.slice"), ("cgroupfs", "/kernels.slice")])
def test_an_engine_is_told_the_same_group_whatever_its_driver(driver: str, parent: str) -> None:
    assert parent_for(driver) == parent
