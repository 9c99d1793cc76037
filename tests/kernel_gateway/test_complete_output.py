"""A cell's reply has all that was printed in any way until the cell's end, in order, and each character whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import nbformat
import pytest

from tests.gateways import Gateway
from tests.kernel_gateway.calls import SHARED, process_only, streamed, until, write
from tests.kernel_gateway.ragflow import run

LINES = "".join(f"{number}\n" for number in range(1, 20_001))
CHINESE = "中文🙂日本" * 3000

FORK = """
import os
print('a')
if (pid := os.fork()) == 0:
    print('b')
    os._exit(0)
done = os.waitpid(pid, 0)
print('c')
"""
FORKS = """
import multiprocessing
fork = multiprocessing.get_context('fork')
def inner():
    print('c', end='')
def outer():
    print('b')
    inside = fork.Process(target=inner); inside.start(); inside.join()
    print('d')
print('a')
outside = fork.Process(target=outer); outside.start(); outside.join()
print('e')
"""
POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def say(number):
    print('line', number)
fork = multiprocessing.get_context('fork')
with ProcessPoolExecutor(1, mp_context=fork) as pool: done = list(pool.map(say, range(3)))
print('end')
"""
ANEW = """
import multiprocessing
for kind in ('spawn', 'forkserver'):
    one = multiprocessing.get_context(kind).Process(target=print, args=(kind,)); one.start(); one.join()
print('end')
"""

#: cells, each with all that it prints
CELLS = {
    "a child": ("import subprocess; subprocess.run(['seq', '20000']); None", LINES),
    "a child that is waited for": ("import subprocess; subprocess.Popen(['seq', '20000']).wait(); None", LINES),
    "a shell": ("import os; os.system('seq 20000'); None", LINES),
    "a child's errors": ("import os; os.system('seq 20000 >&2'); None", LINES),
    "a child that gets the stream": (
        "import subprocess, sys; subprocess.run(['echo', 'b'], stdout=sys.stdout); None",
        "b\n",
    ),
    "children among prints": (
        "import os\nfor n in range(20): print('a'); os.system('echo b'); print('c', flush=True); os.system('echo d')",
        "a\nb\nc\nd\n" * 20,
    ),
    "the descriptor among prints": (
        "import os\nfor n in range(2000): print('a'); done = os.write(1, b'b\\n')",
        "a\nb\n" * 2000,
    ),
    "C among prints": (
        "import ctypes\nfor n in range(20): print('a'); done = ctypes.CDLL(None).printf(b'b\\n')",
        "a\nb\n" * 20,
    ),
    "C's last line without an end": ("import ctypes; ctypes.CDLL(None).printf(b'b'); None", "b"),
    "Python's usual stream": ("import sys\nprint('a'); print('b', file=sys.__stdout__); print('c', end='')", "a\nb\nc"),
    "a stream that was replaced": ("import io, sys; print('a'); sys.stdout = io.StringIO()", "a\n"),
    "a fork": (FORK, "a\nb\nc\n"),
    "forks of forks": (FORKS, "a\nb\ncd\ne\n"),
    "a pool": (POOL, "line 0\nline 1\nline 2\nend\n"),
    "processes that start anew": (ANEW, "spawn\nforkserver\nend\n"),
    "a manager": (
        "import multiprocessing\nwith multiprocessing.Manager() as manager: print(manager.list([1]))\nprint('end')",
        "[1]\nend\n",
    ),
    "an error": ("import os; os.system('seq 20000'); 1 / 0", LINES),
    "a command": ("print('a')\n!echo b\nprint('c')", "a\nb\r\nc\n"),
    "a script": ("%%bash\necho a; seq 20000", f"a\n{LINES}"),
    "an await": (
        "import asyncio\none = await asyncio.create_subprocess_exec('seq', '20000'); done = await one.wait()",
        LINES,
    ),
    "Chinese": (f"import os; open('text', 'w').write({CHINESE[:5]!r} * 3000); os.system('cat text'); None", CHINESE),
    "a character in two writes": (
        "import os, time\nfor byte in '中🙂\\n'.encode(): done = os.write(1, bytes([byte])); time.sleep(0.25)",
        "中🙂\n",
    ),
    "a character in two writes of a command": (
        r"!printf '\344\270'; sleep 0.3; printf '\255'",
        "中",
    ),
    "a broken character": ("import os; os.write(1, b'a\\xe4\\xb8b\\xff\\n'); None", "a\ufffdb\ufffd\n"),
}

#: the cells that run often, beside other programs
OFTEN = ("a child", "children among prints", "the descriptor among prints", "C among prints", "a fork", "Chinese")


def printed(gateway: Gateway, session: str, code: str) -> str:
    """Run a cell and return what it printed, without an error at its end."""
    outputs = gateway.execute(session, code)["outputs"]
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.fixture
def replaced(gateway: Gateway) -> Iterator[None]:
    """Put the stream back that a cell has replaced."""
    gateway.execute(SHARED, "import sys; own_stream = sys.stdout")
    yield
    gateway.execute(SHARED, "sys.stdout = own_stream; del own_stream")


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize(("code", "text"), CELLS.values(), ids=CELLS.keys())
def test_all_that_was_printed_is_in_the_reply_and_in_order(gateway: Gateway, code: str, text: str) -> None:
    assert printed(gateway, SHARED, code) == text


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep two processors busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", OFTEN)
def test_it_is_so_a_hundred_times_beside_busy_loops(gateway: Gateway, session: str, name: str) -> None:
    code, text = CELLS[name]
    for _ in range(100):
        assert printed(gateway, session, code) == text


@process_only
def test_half_of_a_character_waits_for_its_rest(gateway: Gateway, session: str) -> None:
    assert printed(gateway, session, r"import os; os.write(1, b'a\xe4\xb8'); None") == "a"
    assert printed(gateway, session, "print('b')") == "b\n"
    assert printed(gateway, session, r"os.write(1, b'\xad'); None") == "中"
    assert printed(gateway, session, r"os.write(1, b'\xe4\xb8'); None") == ""
    assert printed(gateway, session, r"os.write(1, b'c'); None") == "\ufffdc"


@process_only
def test_output_of_a_child_arrives_while_its_cell_waits(gateway: Gateway, session: str) -> None:
    code = "import os; os.system('echo begun; until [ -e go ]; do sleep 0.01; done; echo ended')"
    with streamed(gateway, session, code) as events:
        seen = ""
        while "begun\n" not in seen:
            seen += next(events).get("output", {}).get("text", "")
        assert "ended" not in seen
        write(gateway, session, "go")
        seen += "".join(event.get("output", {}).get("text", "") for event in events)
    assert seen == "begun\nended\n"


@process_only
def test_a_thread_of_an_earlier_cell_takes_no_output_of_a_later_one(gateway: Gateway, session: str) -> None:
    prints = """
import os, threading, time
def prints():
    while not over: print('.', end='', flush=True); time.sleep(0.0001)
over = False
thread = threading.Thread(target=prints)
thread.start()
"""
    gateway.execute(session, prints)
    assert printed(gateway, session, "os.system('seq 20000'); None").replace(".", "") == LINES
    gateway.execute(session, "over = True; thread.join()")


@process_only
def test_what_the_background_prints_later_is_in_the_notebook_or_the_next_cell(gateway: Gateway, session: str) -> None:
    starts = "import os; os.system('(until [ -e go ]; do sleep 0.01; done; echo late; touch said) &'); print('now')"
    assert printed(gateway, session, starts) == "now\n"
    write(gateway, session, "go")

    def kept() -> list[str]:
        notebook = nbformat.reads(gateway.call("GET", f"/v1/sessions/{session}/notebook").text, 4)
        return [output.text for cell in notebook.cells for output in cell.outputs if output.output_type == "stream"]

    until(lambda: "late\n" in "".join(kept()))
    over = "while not os.path.exists('said'): pass\nos.remove('go'); os.remove('said')"
    assert printed(gateway, session, f"{over}; {starts}") == "now\n"
    waits = "open('go', 'w').close()\nwhile not os.path.exists('said'): pass\nprint('next')"
    assert printed(gateway, session, waits) == "late\nnext\n"


@process_only
def test_a_flood_from_the_background_keeps_no_cell_from_ending(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "import subprocess; flood = subprocess.Popen(['yes'])")
    for _ in range(3):
        assert gateway.execute(session, "for _ in range(100): print('x')")["status"] == "ok"
    gateway.execute(session, "flood.kill(); done = flood.wait()")
    assert gateway.text(session, "40 + 2").endswith("42")


def test_a_program_has_all_that_its_children_print(gateway: Gateway) -> None:
    code = f"import os\ndef main():\n    print('a'); os.system('echo {CHINESE[:300]}; seq 20000'); print('b')"
    answer = run(gateway, code)
    assert answer["stdout"] == f"a\n{CHINESE[:300]}\n{LINES}b\n"
