"""How the Python kernel publishes and reads its shell channel, seen by a client that disturbs it."""

from __future__ import annotations

import json
import queue
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from ipykernel.thread import CONTROL_THREAD_NAME
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from sessions.backends.base import KERNEL_IMAGE
from tests.tiers import some

ARGV = [sys.executable, str(KERNEL_IMAGE / "python_kernel/__main__.py"), "-f", "{connection_file}"]
Message = dict[str, Any]


class Specs(KernelSpecManager):
    """Finds the kernel under every name."""

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=ARGV, language="python", display_name="ours")


class Talk:
    """A client of the kernel."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client: BlockingKernelClient = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def hear(self, asked: set[str], answer: Callable[[], None] = lambda: None, patience: float = 60) -> list[Message]:
        """Return all messages until each request has its reply and its `idle`."""
        left = {(msg_id, end) for msg_id in asked for end in ("reply", "idle")}
        said: list[Message] = []
        deadline = time.monotonic() + patience
        while left:
            assert time.monotonic() < deadline, left
            channels = (self.client.iopub_channel, self.client.shell_channel, self.client.stdin_channel)
            zmq.select([channel.socket for channel in channels], [], [], 1)
            for channel in channels:
                try:
                    message = channel.get_msg(timeout=0)
                except queue.Empty:
                    continue
                said.append(message)
                parent = message["parent_header"].get("msg_id")
                if channel is self.client.stdin_channel:
                    answer()
                elif channel is self.client.shell_channel:
                    left.discard((parent, "reply"))
                elif message["content"].get("execution_state") == "idle":
                    left.discard((parent, "idle"))
        return said

    def run(self, code: str) -> list[Message]:
        """Run a cell."""
        return self.hear({self.client.execute(code)})

    def text(self, code: str) -> str:
        """Run a cell and return its text."""
        return texts(self.run(code))

    def begin(self, asked: str) -> None:
        """Wait until a cell has printed `begun`."""
        while "begun" not in texts([message := self.client.get_iopub_msg(timeout=60)]):
            assert message["content"].get("execution_state") != "idle" or message["parent_header"]["msg_id"] != asked

    def interrupt(self) -> None:
        """Send an interrupt as a message."""
        assert self.control("interrupt_request")["content"]["status"] == "ok"

    def control(self, msg_type: str, **content: Any) -> Message:
        """Send a request on the control channel and return its reply."""
        message = self.client.session.msg(msg_type, content)
        self.client.control_channel.send(message)
        return self.client.get_control_msg(timeout=30)

    def in_subshell(self, subshell: str, code: str) -> str:
        """Send a cell to a subshell and return the request's id."""
        message = self.client.session.msg("execute_request", {"code": code, "silent": False})
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])


def texts(said: list[Message]) -> str:
    return "".join(message["content"]["text"] for message in said if message["msg_type"] == "stream")


def ended(said: list[Message]) -> str:
    """Return the name of a cell's error; empty: it had none."""
    (reply,) = (message["content"] for message in said if message["msg_type"] == "execute_reply")
    return str(reply.get("ename", ""))


@pytest.fixture
def talk() -> Iterator[Talk]:
    # Another program could take a TCP port before the kernel does.
    manager = KernelManager(kernel_name="ours", kernel_spec_manager=Specs(), transport="ipc")
    manager.start_kernel()
    talk = Talk(manager)
    yield talk
    talk.client.stop_channels()
    manager.shutdown_kernel()
    process: Any = manager.provisioner
    assert process is None or process.process is None or process.process.poll() == 0


CELLS = (
    "1",
    "print('a', flush=True); print(input('who? ') + input('and? '))",
    "await asyncio.sleep(random.random() * 0.003)",
    "await asyncio.sleep(0); input()",
    "time.sleep(0.002)",
    "1 / 0",
)


@pytest.mark.parametrize("seed", some(range(5), gate=1))
def test_every_request_is_answered_at_random_times(talk: Talk, seed: int) -> None:
    """If sending clears the edge of a socket, a request stays unread."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    talk.run("import asyncio, random, time")

    def answer() -> None:
        time.sleep(dice.choice([0, 0.001, 0.01]))
        talk.client.input("x")

    for _ in range(150):
        asked = set()
        for _ in range(dice.choice([1, 1, 2, 5])):
            ask = dice.choice([talk.client.kernel_info, talk.client.comm_info, *[talk.client.execute] * 5])
            asked.add(ask(dice.choice(CELLS), allow_stdin=True) if ask == talk.client.execute else ask())
            time.sleep(dice.choice([0, 0.001, 0.003]))
        talk.hear(asked, answer)


def test_a_failed_cell_aborts_the_cells_behind_it(talk: Talk) -> None:
    cells = [talk.client.execute(code) for code in ("import time; time.sleep(0.5); 1 / 0", "print(1)", "print(2)")]
    said = talk.hear(set(cells))
    replies = {
        message["parent_header"]["msg_id"]: message["content"] for message in said if "status" in message["content"]
    }
    assert [replies[cell]["status"] for cell in cells] == ["error", "aborted", "aborted"]
    assert texts(said) == ""
    assert talk.text("print(3)") == "3\n"


def test_no_reply_is_dropped_for_a_client_that_is_behind(talk: Talk) -> None:
    flood = """
kernel = get_ipython().kernel
shell = kernel.shell_channel_thread.manager.get_subshell_to_shell_channel_socket(None)
for _ in range(5000):
    _ = kernel.session.send(shell, "execute_reply", {"text": "x" * 10_000}, ident=kernel._parent_ident["shell"])
"""
    asked = talk.client.execute(flood)
    time.sleep(2)
    said = talk.hear({asked})
    assert sum(message["msg_type"] == "execute_reply" for message in said) == 5001


def test_messages_are_whole_under_a_storm_of_interrupts(talk: Talk) -> None:
    """A message sent while a KeyboardInterrupt is raised is sent whole or not at all, and in order."""
    storm = """
import signal
def strike(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
armed, interrupted, number = False, 0, 0
signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
while interrupted < 300:
    try:
        armed = True
        while True:
            print(f"<{number}>", flush=True)
            number += 1
    except KeyboardInterrupt:
        interrupted += 1
_ = signal.setitimer(signal.ITIMER_REAL, 0)
"""
    asked = talk.client.execute(storm)
    # A reply to the client's own start may still come.
    said = [message for message in talk.hear({asked}) if message["parent_header"]["msg_id"] == asked]
    numbers = [int(part) for part in texts(said).replace("\n", "").strip("<>").split("><") if part.isdigit()]
    assert len(numbers) > 300
    assert numbers == sorted(numbers)
    assert {message["msg_type"] for message in said} <= {"status", "execute_input", "stream", "execute_reply"}
    assert talk.text("print(interrupted)") == "300\n"


def test_text_that_waits_for_its_reader_survives_an_interrupt(talk: Talk) -> None:
    asked = talk.client.execute("for n in range(400): print(f'{n:04}' + 'x' * 100_000, flush=True)")
    time.sleep(2)  # without a reader the cell waits by now
    talk.manager.interrupt_kernel()
    said = texts(talk.hear({asked}))
    lines = [line[:4] for line in said.splitlines() if line.endswith("x" * 1000)]
    assert lines == [f"{n:04}" for n in range(len(lines))]
    assert talk.text("print(n)").strip() == str(len(lines) - 1)


HALF_SENT = """
import sys, time
class Slow(type(sys.stdout)):
    def _publish(self, key, piece):
        time.sleep(1)
        super()._publish(key, piece)
sys.stdout.__class__ = Slow
print("in time")
time.sleep(0.6)
"""


def test_a_cell_does_not_end_before_text_that_another_thread_is_sending(talk: Talk) -> None:
    assert talk.text(HALF_SENT) == "in time\n"


def test_printed_text_arrives_while_the_cell_runs(talk: Talk) -> None:
    asked = talk.client.execute("print('soon'); import time; time.sleep(300)")
    while talk.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    talk.manager.interrupt_kernel()
    talk.hear({asked})


def test_a_control_request_does_not_cut_a_printed_line(talk: Talk) -> None:
    talk.run("import sys, threading, time; sys.stdout.flush_interval = 60")
    begin = "sys.stdout.write('one '); sys.stdout.write('line')"
    flush = "thread = threading.Thread(target=sys.stdout.flush, name={name!r}); thread.start(); thread.join()"
    end = "time.sleep(0.3); print(flush=True)"
    for name, lines in ((CONTROL_THREAD_NAME, ["one line\n"]), ("another", ["one line", "\n"])):
        published = talk.run("\n".join([begin, flush.format(name=name), end]))
        assert [message["content"]["text"] for message in published if message["msg_type"] == "stream"] == lines


def test_printed_text_stays_in_order_during_control_requests(talk: Talk) -> None:
    for _ in range(2):
        cell = talk.client.execute("for i in range(100_000): print(i)")
        for _ in range(100):
            talk.control("kernel_info_request")
        assert texts(talk.hear({cell})).split() == [str(number) for number in range(100_000)]


def test_a_running_cell_is_reported_as_busy(talk: Talk) -> None:
    asked = talk.client.execute("import time; time.sleep(20)")
    seen = [talk.client.get_iopub_msg(timeout=10) for _ in range(2)]
    assert [message["content"].get("execution_state") for message in seen] == ["busy", None]
    assert seen[1]["msg_type"] == "execute_input"
    talk.manager.interrupt_kernel()
    talk.hear({asked})


def test_output_of_forks_and_threads_is_published(talk: Talk) -> None:
    fork = """
import os, threading
if (pid := os.fork()) == 0:
    print("from a fork", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
thread = threading.Thread(target=print, args=["from a thread"])
thread.start(); thread.join()
"""
    assert talk.text(fork) == "from a fork\nfrom a thread\n"


def test_what_a_fork_displays_comes_behind_what_it_has_printed(talk: Talk) -> None:
    fork = """
import multiprocessing
def show():
    print("printed")
    display("displayed")
one = multiprocessing.get_context("fork").Process(target=show)
one.start(); one.join()
"""
    said = talk.run(fork)
    while "display_data" not in {message["msg_type"] for message in said}:  # it arrives by a separate way
        said.append(talk.client.get_iopub_msg(timeout=60))
    shown = [message for message in said if message["msg_type"] in {"stream", "display_data"}]
    assert [message["msg_type"] for message in shown] == ["stream", "display_data"]
    assert texts(shown) == "printed\n"


def test_a_subshells_text_keeps_its_order_when_the_main_shell_flushes_a_part_of_it(talk: Talk) -> None:
    subshell = talk.control("create_subshell_request")["content"]["subshell_id"]
    # ipykernel flushes stdout and then stderr, when a cell ends, before its reply.
    ending = talk.client.execute(
        "import sys, threading, types; begun, flushed, rest = (threading.Event() for _ in range(3))\n"
        "begun.wait(30); usual = sys.stderr\n"
        "def flush(): sys.stderr = usual; flushed.set(); assert rest.wait(30)\n"
        "sys.stderr = types.SimpleNamespace(flush=flush)"
    )
    beside = talk.in_subshell(
        subshell,
        "import time\nwhile 'rest' not in globals(): time.sleep(0.01)\n"
        "print('be', end=''); begun.set(); assert flushed.wait(30); print('side', flush=True); rest.set()",
    )
    said = talk.hear({ending, beside})
    assert texts([message for message in said if message["parent_header"]["msg_id"] == beside]) == "beside\n"


def test_a_subshell_runs_beside_a_busy_main_shell(talk: Talk) -> None:
    assert talk.control("list_subshell_request")["content"]["subshell_id"] == []
    busy = talk.client.execute("import time\nwhile 'go' not in globals(): time.sleep(0.01)\nprint('main')")
    subshell = talk.control("create_subshell_request")["content"]["subshell_id"]
    beside = talk.in_subshell(subshell, "go = 1; print('sub')")
    said = talk.hear({beside, busy})
    # Checked separately: a line's end may arrive in a separate message, after a message of the other cell.
    for asked, text in ((beside, "sub\n"), (busy, "main\n")):
        assert texts([message for message in said if message["parent_header"]["msg_id"] == asked]) == text
    assert talk.text("print('again')") == "again\n"
    assert talk.control("delete_subshell_request", subshell_id=subshell)["content"]["status"] == "ok"
    assert talk.text("print('and again')") == "and again\n"


WAITING = {
    "a timer": "await asyncio.sleep(1000)",
    "an event": "await asyncio.Event().wait()",
    "several": "await asyncio.gather(asyncio.sleep(1000), asyncio.Event().wait())",
    "a child": "await (await asyncio.create_subprocess_exec('sleep', '60', start_new_session=True)).wait()",
    "a thread": "await asyncio.to_thread(over.wait)",
    "a loop that the signal does not wake": "signal.pthread_sigmask(signal.SIG_BLOCK, [2])\nawait asyncio.sleep(1000)",
    "nothing": "while True: pass",
}


@pytest.mark.parametrize("waits", WAITING.values(), ids=WAITING)
def test_an_interrupt_ends_a_cell_that_awaits(talk: Talk, waits: str) -> None:
    talk.run("import asyncio, signal, threading\nover = threading.Event()")
    asked = talk.client.execute(f"await asyncio.sleep(0); print('begun', flush=True)\n{waits}")
    talk.begin(asked)
    talk.interrupt()
    assert ended(talk.hear({asked})) == "CancelledError"
    assert talk.text("over.set(); print('kept')") == "kept\n"


def test_each_interrupt_reaches_a_cell_that_goes_on(talk: Talk) -> None:
    asked = talk.client.execute("""
import asyncio
for _ in range(3):
    try:
        print('begun', flush=True)
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        pass
""")
    for _ in range(3):
        talk.begin(asked)
        talk.interrupt()
    assert ended(talk.hear({asked})) == ""


#: what a task does while the interrupts come. The computation runs no Python code, so both come as one signal.
KEEPING = {"runs": "pass", "computes": "hashlib.pbkdf2_hmac('sha256', b'', b'', 3_000_000)"}


@pytest.mark.parametrize("keeps", KEEPING.values(), ids=KEEPING)
def test_a_second_interrupt_ends_a_task_that_keeps_the_loop(talk: Talk, keeps: str) -> None:
    asked = talk.client.execute(f"""
import asyncio, hashlib
async def spin():
    print('begun', flush=True)
    {keeps}
    while True: pass
await asyncio.gather(spin())
""")
    talk.begin(asked)
    talk.interrupt()
    talk.interrupt()
    assert ended(talk.hear({asked})) == "CancelledError"
    assert talk.text("print('kept')") == "kept\n"


def test_an_interrupt_ends_a_cell_that_awaits_in_a_subshell(talk: Talk) -> None:
    subshell = talk.control("create_subshell_request")["content"]["subshell_id"]
    for _ in range(2):
        asked = talk.in_subshell(subshell, "import asyncio; print('begun', flush=True); await asyncio.sleep(1000)")
        talk.begin(asked)
        talk.interrupt()
        assert ended(talk.hear({asked})) == "CancelledError"


def test_output_of_a_child_is_in_the_cell_of_its_subshell(talk: Talk) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 20_001))
    busy = talk.client.execute("import time\nprint('begun', flush=True)\nwhile 'go' not in globals(): time.sleep(0.01)")
    talk.begin(busy)  # else it might begin behind the cell in the subshell, and would get the rest of its output
    subshell = talk.control("create_subshell_request")["content"]["subshell_id"]
    # In the short ones most is read after their code has ended.
    for code, text in [
        ("import os; os.system('seq 20000'); None", lines),
        *[("os.write(1, b'short'); None", "short")] * 50,
    ]:
        beside = talk.in_subshell(subshell, code)
        assert texts([said for said in talk.hear({beside}) if said["parent_header"]["msg_id"] == beside]) == text
    talk.hear({busy, talk.in_subshell(subshell, "go = 1")})
    assert talk.text("os.system('seq 20000'); None") == lines


def test_a_cell_for_an_unknown_subshell_gets_an_error(talk: Talk) -> None:
    asked = talk.in_subshell("none", "1")
    said = talk.hear({asked})
    assert [message["content"]["ename"] for message in said if message["msg_type"] == "execute_reply"] == [
        "UnknownSubshellError"
    ]
    assert talk.text("print(1)") == "1\n"


def test_a_late_subscriber_is_welcomed_while_a_cell_prints(talk: Talk) -> None:
    asked = talk.client.execute("import time\nfor _ in range(300): print('.', flush=True); time.sleep(0.01)")
    time.sleep(0.5)
    late = talk.manager.client()
    late.start_channels(shell=False, stdin=False, hb=False, control=False)
    types = {late.get_iopub_msg(timeout=60)["msg_type"]}
    while "iopub_welcome" not in types:
        types.add(late.get_iopub_msg(timeout=60)["msg_type"])
    late.iopub_channel.stop()
    talk.hear({asked})


@pytest.mark.parametrize("channel", ["shell", "control", "iopub"])
def test_a_kernel_that_lacks_one_of_its_channels_does_not_run(tmp_path: Path, channel: str) -> None:
    info: dict[str, Any] = {f"{name}_port": 0 for name in ("shell", "iopub", "stdin", "control", "hb")}
    info |= {"transport": "tcp", "ip": "127.0.0.1", "key": "k", "signature_scheme": "hmac-sha256"}
    with socket.create_server(("127.0.0.1", 0)) as other:
        file = tmp_path / "connection.json"
        file.write_text(json.dumps(info | {f"{channel}_port": other.getsockname()[1]}))
        command = [part.format(connection_file=file) for part in ARGV]
        assert subprocess.run(command, timeout=60, check=False).returncode == 1
