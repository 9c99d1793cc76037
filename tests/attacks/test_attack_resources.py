"""Code that uses all it can get: it meets its own limits, gets the right error, and disturbs no other session."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import docker
import pytest

from tests.attacks import probes
from tests.attacks.cells import Attacker
from tests.attacks.vitals import Vitals
from tests.figures import hold
from tests.tiers import cases

pytestmark = [pytest.mark.engine, pytest.mark.measured]

PROCESSES = 64

MEMORY_BOMBS = {
    "many small pieces": "pieces = []\nwhile True: pieces.append(bytearray(b'x' * 2**20))",
    "one large piece": "piece = b'x' * 2**31",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "several threads": (
        "import threading\n"
        "def eat():\n"
        "    pieces = []\n"
        "    while True: pieces.append(b'x' * 2**20)\n"
        "threads = [threading.Thread(target=eat) for _ in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    ),
    "files in memory": (
        "import os\n"
        "pieces = []\n"
        "while True:\n"
        "    pieces.append(os.memfd_create('x'))\n"
        "    os.write(pieces[-1], b'x' * 8 * 2**20)"
    ),
}


# -- processes --------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_session_has_a_limited_number_of_processes(evil: Attacker) -> None:
    assert evil.probe(probes.spawned, 20) == 20
    assert 20 < evil.probe(probes.spawned, 4 * PROCESSES) < PROCESSES
    assert evil.probe(probes.spawned, 20) == 20
    evil.still_works()


def test_threads_count_as_processes(evil: Attacker) -> None:
    count = (
        "import threading\n"
        "over = threading.Event()\n"
        "threads = []\n"
        "try:\n"
        "    while len(threads) < {wanted}:\n"
        "        thread = threading.Thread(target=over.wait)\n"
        "        thread.start()\n"
        "        threads.append(thread)\n"
        "except RuntimeError: pass\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n"
        "print(len(threads))"
    )
    assert int(evil.text(count.format(wanted=20))) == 20
    assert 20 < int(evil.text(count.format(wanted=4 * PROCESSES))) < PROCESSES
    evil.still_works()


FORK_BOMBS = {
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "forks that hide": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except BaseException: pass"
    ),
    "shell": "import subprocess\nsubprocess.run(['sh', '-c', 'f() { f | f & }; f; wait; sleep 60'])",
}


@pytest.mark.parametrize("bomb", cases(FORK_BOMBS, gate="forks that hide"))
def test_a_fork_bomb_ends_with_its_cell(evil: Attacker, vitals: Vitals, bomb: str) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        ran = evil.run(bomb, timeout=4)
    assert ran.status in {"timeout", "died", "error"}, ran.result
    evil.recovers()


# -- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bomb", cases(MEMORY_BOMBS, gate="many small pieces"))
def test_a_kernel_that_outgrows_its_memory_is_ended_and_reported(evil: Attacker, vitals: Vitals, bomb: str) -> None:
    evil.text("kept = b'x' * (64 << 20); print(len(kept))")  # below the limit memory is available
    with vitals.neighbour.calling():
        ran = evil.run(bomb, timeout=60)
    assert (ran.status, ran.error_code, ran.state) == ("died", "SB006", "lost"), ran.result
    hold("the end of a kernel without memory", ran.seconds, lambda: vitals.late)
    evil.works_again()


def test_a_child_that_outgrows_the_memory_is_reported_rightly(evil: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling():
        ran = evil.run(
            "import subprocess, sys\n"
            "code = 'pieces = []\\nwhile True: pieces.append(bytes(range(256)) * 4096)'\n"
            "print(subprocess.run([sys.executable, '-c', code]).returncode)",
            timeout=60,
        )
    if ran.status == "ok":  # the host's killer ended only the child; its parent gets the exit code
        assert int(ran.text) != 0
        evil.still_works()
    else:
        assert (ran.status, ran.error_code, ran.state) == ("died", "SB006", "lost"), ran.result
        evil.works_again()


def test_another_session_of_the_tenant_keeps_its_variables(evil: Attacker, sibling: Attacker) -> None:
    sibling.text("x = 42")
    assert evil.run(MEMORY_BOMBS["one large piece"], timeout=60).status == "died"
    assert sibling.text("print(x)") == "42\n"


def test_full_scratch_space_does_not_end_the_session(evil: Attacker) -> None:
    """The scratch space counts against the memory limit; all of it together stays below."""
    fill = (
        "import os\n"
        "folders = ('/tmp', '/dev/shm', '/home/user', '/home/kernel')\n"
        "for folder in folders:\n"
        "    try:\n"
        "        for i in range(1000):\n"
        "            open(f'{folder}/fill-{i}', 'wb', buffering=0).write(b'x' * 2**20)\n"
        "    except OSError as error: print(error.strerror)"
    )
    assert "No space left" in evil.text(fill)
    evil.still_works()
    evil.expect("error", "1 / 0")
    clear = "import glob, os\nfor folder in folders:\n    for name in glob.glob(f'{folder}/fill-*'): os.remove(name)"
    evil.text(clear)
    assert evil.text("print(open('/tmp/again', 'wb').write(b'x' * 2**22))") == f"{2**22}\n"


# -- processor and descriptors ----------------------------------------------------------------------------------


def test_spinning_threads_take_their_share_and_no_more(evil: Attacker, vitals: Vitals) -> None:
    spin = (
        "import threading\n"
        "def spin():\n"
        "    while True: pass\n"
        "for _ in range(32): threading.Thread(target=spin, daemon=True).start()\n"
        "spin()"
    )
    with vitals.neighbour.calling():
        ran = evil.run(spin, timeout=3)
    assert (ran.status, ran.error_code) == ("timeout", "SB005")
    evil.recovers()


def test_spinning_processes_take_their_share_and_no_more(evil: Attacker, vitals: Vitals) -> None:
    container = evil.container["Id"]
    spin = (
        "import subprocess, time\n"
        "spinners = [subprocess.Popen(['sh', '-c', 'while :; do :; done']) for _ in range(16)]\n"
        "time.sleep(3)\n"
        "for spinner in spinners: spinner.kill(); spinner.wait()"
    )
    before, began = processor_seconds(container), time.monotonic()
    with vitals.neighbour.calling():
        evil.text(spin, timeout=30)
    share = (processor_seconds(container) - before) / (time.monotonic() - began)
    assert 0.2 < share < 1.2, share  # the limit is one processor
    evil.still_works()


def processor_seconds(container: str) -> float:
    """Return the processor seconds that the host has given to a container."""
    with contextlib.closing(docker.from_env()) as client:
        usage: dict[str, Any] = client.api.stats(container, stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]
    return float(usage["total_usage"]) / 1e9


def test_descriptors_run_out_at_the_limit_and_come_back(evil: Attacker) -> None:
    assert evil.probe(probes.opened, 500) == 500
    assert 500 < evil.probe(probes.opened, 5000) < 1024
    assert evil.probe(probes.opened, 500) == 500
    evil.still_works()


def test_code_that_keeps_all_descriptors_harms_only_its_own_session(evil: Attacker, vitals: Vitals) -> None:
    keep = "import os\nkept = []\ntry:\n    while True: kept.append(os.open('/dev/null', 0))\nexcept OSError: pass"
    with vitals.neighbour.calling():
        evil.run(keep, timeout=5)
        evil.run("print(1)", timeout=5)
    evil.run("[os.close(one) for one in kept]", timeout=5)
    evil.recovers()
