"""Kernels that lie, flood or fall silent: every cell ends once and in time, and the gateway is not harmed."""

from __future__ import annotations

import contextlib
import inspect
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.attacks import forge
from tests.attacks.cells import Attacker
from tests.attacks.conftest import siege
from tests.attacks.vitals import AT_ONCE, Vitals, wait_until
from tests.figures import hold
from tests.gateways import KEYS
from tests.tiers import cases

pytestmark = [pytest.mark.engine, pytest.mark.measured]

MIB = 1024**2
#: bytes of output per execution: the gateway's own default
OUTPUT_MAX = 10 * MIB


@pytest.fixture(scope="module")
def at_rest(network: str) -> Iterator[Vitals]:
    """A gateway whose kernels have enough memory to make messages that the gateway must refuse."""
    with siege(memory="1g") as vitals:
        yield vitals


@pytest.fixture
def forger(evil: Attacker) -> Attacker:
    """A session with the tools to send on its kernel's channels."""
    evil.text(inspect.getsource(forge))
    return evil


# -- the end of a cell ------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_the_tools_reach_the_gateway(forger: Attacker) -> None:
    """The control of all later tests: a well-forged message counts as the kernel's own."""
    assert forger.text("on_iopub(printed('forged'))") == "forged"
    unnamed = forger.expect("error", "on_shell(replied(status='error'))").text
    assert unnamed == "UnknownError: the kernel has not said why the cell failed"
    asked = forger.text("on_stdin(message('input_request', {'prompt': '?'}))\nprint(kernel.stdin_socket.poll(5000))")
    assert asked == "1\n"  # the gateway has answered


def test_a_cell_ends_although_its_idle_is_lost(forger: Attacker) -> None:
    ran = forger.expect(
        "ok",
        "publish = kernel._publish_status_and_flush\n"
        "def lose(*arguments, **options): kernel._publish_status_and_flush = publish\n"
        "kernel._publish_status_and_flush = lose\n"
        "print('said')",
        timeout=5,
    )
    assert (ran.text, ran.result["truncated"]) == ("said\n", True)
    forger.still_works()


def test_cells_end_although_their_kernel_never_sends_idle_again(forger: Attacker) -> None:
    never = "kernel._publish_status = kernel._publish_status_and_flush = lambda *arguments, **options: None\nprint('x')"
    ran = forger.expect("ok", never, timeout=6)
    assert (ran.text, ran.result["truncated"]) == ("x\n", True)


def test_a_kernel_whose_output_no_longer_arrives_is_ended(forger: Attacker) -> None:
    mute = "lambda: setattr(kernel.iopub_thread, 'socket', zmq.Context.instance().socket(zmq.XPUB))"  # no subscriber
    forger.text(f"import zmq\nthreading.Timer(0.2, {mute}).start()")
    time.sleep(1)
    ran = forger.run("print('unheard')", timeout=6)
    # The gateway sees first either that the kernel is mute, or that it cannot be reached.
    assert (ran.status, ran.error_code in {"SB003", "SB010"}, ran.state) == ("died", True, "lost"), ran.result
    forger.works_again()


@pytest.mark.gate
def test_a_forged_idle_ends_nothing(forger: Attacker) -> None:
    ran = forger.expect("ok", "import time\non_iopub(idle(), idle())\ntime.sleep(1)\nprint('LATE', flush=True)")
    assert ran.result["duration_ms"] > 1000
    forger.still_works()  # no output of the earlier cell appears in the next one


def test_a_forged_reply_alone_ends_nothing(forger: Attacker) -> None:
    ran = forger.expect("ok", "import time\non_shell(replied())\ntime.sleep(0.5)\nprint('LATE')")
    assert ran.text == "LATE\n"
    forger.still_works()


def test_only_the_first_of_many_replies_counts(forger: Attacker) -> None:
    ran = forger.run("on_shell(*[replied(status=word) for word in ['error', 'ok', 'aborted'] * 500])")
    assert ran.status == "error"
    forger.still_works()


@pytest.mark.parametrize(
    "content",
    ["{}", "{'status': None}", "{'status': ['ok']}", "{'status': {'a': 1}}", "{'status': 'ok', 'payload': 5}"],
)
def test_a_reply_of_any_form_ends_the_cell(forger: Attacker, content: str) -> None:
    ran = forger.run(f"on_shell(message('execute_reply', {content}))")
    assert ran.status in {"ok", "error"}
    forger.still_works()


def test_a_cell_that_pretends_to_have_ended_cannot_keep_the_session(forger: Attacker, vitals: Vitals) -> None:
    pretended = forger.expect("ok", "on_iopub(idle())\non_shell(replied())\nwhile True: pass")
    hold("a pretended end", pretended.seconds, lambda: AT_ONCE * vitals.neighbour.usual)
    waiting = forger.run("print('mine')", timeout=3)
    assert waiting.status in {"timeout", "ok", "interrupted"}
    forger.recovers()


def test_output_for_another_request_is_dropped(forger: Attacker) -> None:
    earlier = forger.text("print(parent()['msg_id'])").strip()
    for someone in (earlier, "", "no-such-id"):
        said = f"on_iopub(message('stream', {{'name': 'stdout', 'text': 'X'}}, {{'msg_id': {someone!r}}}))"
        assert forger.text(said) == ""
    forger.still_works()


def test_messages_for_another_sessions_request_do_not_reach_it(forger: Attacker, sibling: Attacker) -> None:
    sibling.text(inspect.getsource(forge))
    marked = "print(parent()['msg_id'], flush=True)\nimport time\ntime.sleep(2)"
    before = sibling.text(marked.replace("sleep(2)", "sleep(0)")).strip()
    number = int(before.rpartition("_")[2])
    guesses = [f"{before.rpartition('_')[0]}_{number + ahead}" for ahead in range(-3, 10)]
    forger.text(
        "import time\n"
        "def forge_all():\n"
        f"    for guess in {guesses!r} * 20:\n"
        "        time.sleep(0.01)\n"
        "        mine = {'msg_id': guess}\n"
        "        on_iopub(message('stream', {'name': 'stdout', 'text': 'FORGED'}, mine))\n"
        "        on_iopub(message('status', {'execution_state': 'idle'}, mine))\n"
        "        on_shell(message('execute_reply', {'status': 'error'}, mine))\n"
        "forging = threading.Thread(target=forge_all)\n"
        "forging.start()"
    )
    ran = sibling.expect("ok", marked)
    assert "FORGED" not in ran.text
    assert ran.result["duration_ms"] > 2000
    forger.run("forging.join()")  # however this cell ends: a guess may be its own id
    forger.recovers()


# -- malformed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["on_iopub", "on_shell", "on_control", "on_stdin"])
def test_malformed_messages_disturb_no_session(forger: Attacker, vitals: Vitals, channel: str) -> None:
    assert int(forger.text("print(len(malformed()))")) >= 50
    with vitals.neighbour.calling(), vitals.bounded():
        ran = forger.run(f"{channel}(*malformed())\nprint('sent')")
    assert "sent\n" in ran.text or ran.status == "error"
    forger.still_works()


def test_a_kernel_that_sends_only_garbage_is_ended(forger: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        ran = forger.run("import time\non_iopub(*[[b'garbage']] * 1500)\ntime.sleep(10)")
    assert (ran.status, ran.error_code, ran.state) == ("died", "SB010", "lost"), ran.result
    forger.works_again()


@pytest.mark.parametrize("depth", [90, 300, 1000, 100_000])
def test_deeply_nested_json_is_passed_on_or_dropped(forger: Attacker, depth: int) -> None:
    ran = forger.expect(
        "ok",
        f"value = b'[' * {depth} + b']' * {depth}\n"
        'content = b\'{"data": {"application/json": \' + value + b\'}, "metadata": {}}\'\n'
        "on_iopub(message('display_data', content), message('execute_result', content), message('error', content))",
    )
    assert len(ran.outputs) in {0, 1, 2, 3}
    forger.still_works()


# -- floods -----------------------------------------------------------------------------------------------------


def test_a_line_of_100_mb_is_cut_at_the_limit(evil: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        ran = evil.expect("ok", "print('x' * 100_000_000)", timeout=60)
    assert ran.result["truncated"] is True
    assert OUTPUT_MAX - 2 * MIB <= len(ran.text) <= OUTPUT_MAX
    assert set(ran.text) == {"x"}
    evil.still_works()


def test_output_below_the_limit_is_complete(evil: Attacker, vitals: Vitals) -> None:
    with vitals.bounded():
        ran = evil.expect("ok", f"print('x' * {OUTPUT_MAX - 1000})", timeout=60)
    assert (len(ran.text), ran.result["truncated"]) == (OUTPUT_MAX - 999, False)


def test_one_message_of_100_mb_is_refused(forger: Attacker, vitals: Vitals) -> None:
    send = (
        "sent = kernel.session.send("
        "kernel.iopub_socket, 'stream', {{'name': 'stdout', 'text': 'x' * {size}}}, parent=parent())"
    )
    assert forger.text(send.format(size=MIB)) == "x" * MIB
    with vitals.neighbour.calling(), vitals.bounded():
        ran = forger.run(send.format(size=100_000_000), timeout=30)
    assert ran.text == ""
    assert ran.result["truncated"] is True or ran.status == "died"
    forger.recovers()


def test_one_reply_of_100_mb_is_refused(forger: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        forger.run("on_shell(replied(more='x' * 100_000_000))", timeout=30)
    forger.recovers()


@pytest.mark.parametrize("channel", ["on_control", "on_stdin"])
def test_100_mb_on_a_side_channel_are_refused(forger: Attacker, vitals: Vitals, channel: str) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        forger.run(f"{channel}(replied(more='x' * 100_000_000))", timeout=30)
    forger.recovers()
    assert forger.run("while True: pass", timeout=2).status == "timeout"  # even if the channel is lost
    forger.recovers()


def test_many_messages_of_the_largest_size_do_not_add_up_in_memory(forger: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        forger.run("large = printed('x' * 7_000_000)\non_iopub(*[large] * 20)", timeout=20)
    forger.recovers()


def test_a_message_of_very_many_tiny_frames_ends_its_kernel(forger: Attacker, vitals: Vitals) -> None:
    assert forger.text("on_iopub([*printed('x'), *[b'y'] * 1000])") == "x"
    with vitals.neighbour.calling(), vitals.bounded(2):  # libzmq needs up to six bytes for each byte of it
        ran = forger.run("on_iopub([*printed('x'), *[b'y'] * 1_500_000])", timeout=30)
    assert (ran.status, ran.error_code, ran.state) == ("died", "SB010", "lost"), ran.result
    forger.works_again()


ENDLESS = {
    "print": "while True: print('x' * 1000)",
    "descriptor": "import os\nwhile True: os.write(1, b'x' * 1000)",
    "child": "import subprocess\nsubprocess.run(['yes'])",
    "both streams": "import sys\nwhile True:\n    print('x', flush=True)\n    print('y', file=sys.stderr, flush=True)",
    "displays": (
        "from IPython.display import display\nimport itertools\n"
        "for i in itertools.count(): display({'text/plain': 'z' * 5000}, raw=True, display_id=f'{i:0>1000}')"
    ),
    "updates": (
        "from IPython.display import display\n"
        "shown = [display({'text/plain': str(i)}, raw=True, display_id='one') for i in range(50)]\n"
        "while True: shown[0].update({'text/plain': 'z' * 100}, raw=True)"
    ),
    "clearing": (
        "from IPython.display import clear_output\n"
        "while True:\n    print('x', flush=True)\n    clear_output()\n    clear_output(wait=True)"
    ),
    "comms": (
        "import itertools\nfor i in itertools.count():\n"
        "    content = {'comm_id': str(i), 'target_name': '<script>', 'data': {'x': 'y' * 1000}}\n"
        "    on_iopub(message('comm_open', content), message('comm_msg', content))"
    ),
    "all kinds": (
        "import itertools\nfor i in itertools.count():\n"
        "    kinds = ['debug_event', 'shutdown_reply', 'status', 'execute_input', 'iopub_welcome', f'kind-{i}']\n"
        "    on_iopub(*[message(kind, {'x': 'y' * 1000}) for kind in kinds])"
    ),
    "cells": (
        "import itertools\nfor i in itertools.count():\n"
        "    on_iopub(message('execute_input', {'code': 'x' * 1000, 'execution_count': 1}, {'msg_id': f'forged-{i}'}))"
    ),
    "questions": "while True: on_stdin(message('input_request', {'prompt': 'x' * 1000, 'password': False}))",
    "replies": (
        "while True:\n"
        "    on_shell(message('execute_reply', {'x': 'y' * 1000}, {'msg_id': 'nobody'}))\n"
        "    on_control(message('interrupt_reply', {'x': 'y' * 1000}, {'msg_id': 'nobody'}))"
    ),
}


@pytest.mark.parametrize("flood", cases(ENDLESS, gate="both streams"))
def test_an_endless_flood_ends_with_its_cell(forger: Attacker, vitals: Vitals, flood: str) -> None:
    with vitals.neighbour.calling(), vitals.bounded():
        ran = forger.run(flood, timeout=3)
    assert ran.status in {"timeout", "died"}, (ran.result, ran.text[-1000:])
    assert ran.error_code in {"SB005", "SB010"}
    forger.recovers()


def test_the_gateway_buffers_little_for_a_client_that_does_not_read(forger: Attacker, vitals: Vitals) -> None:
    with vitals.neighbour.calling(), vitals.bounded(), deaf_client(forger, ENDLESS["both streams"], timeout=4):
        time.sleep(6)
    forger.recovers()


@contextlib.contextmanager
def deaf_client(evil: Attacker, code: str, timeout: float) -> Iterator[None]:
    """Request a streamed execution, and never read a byte of the response."""
    address = urlsplit(evil.gateway.url)
    body = json.dumps({"code": code, "timeout": timeout}).encode()
    head = (
        f"POST /v1/sessions/{evil.session}/execute HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {KEYS[evil.tenant]}\r\nAccept: application/x-ndjson\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        connection.sendall(head.encode() + body)
        yield


LONG_NAMES = {
    "cells": "message('execute_input', {'code': 'x', 'execution_count': 1}, {'msg_id': long})",
    "displays": "message('display_data', {'data': {}, 'metadata': {}, 'transient': {'display_id': long}})",
    "updates": "message('update_display_data', {'data': {}, 'metadata': {}, 'transient': {'display_id': long}})",
    "kinds": "message(long, {})",
    "ids": "message('stream', {}, msg_id=long)",
    "comms": "message('comm_open', {'comm_id': long})",
}


def test_names_that_a_kernel_makes_up_are_not_kept(forger: Attacker, vitals: Vitals) -> None:
    """A few such names are little; if the gateway kept all of them, its memory would exceed the bound."""
    with vitals.neighbour.calling(), vitals.bounded():
        for name in LONG_NAMES.values():
            forger.run(f"for i in range(40):\n    long = f'{{i:x>2000000}}'\n    on_iopub({name})", timeout=20)
    forger.still_works()


def test_a_forged_input_request_of_any_form_is_answered_or_ignored(forger: Attacker) -> None:
    forger.expect(
        "ok",
        "headers = [{'header': 5}, {'header': {'a': 1}}, {'date': {}}, {'msg_id': 'x' * 100_000}, {'session': [1]}]\n"
        "for more in headers:\n"
        "    on_stdin(message('input_request', {'prompt': ['?'], 'password': 'no'}, **more))\n"
        "on_stdin(message('input_request', {'prompt': 'x' * 10_000_000}), message('input_reply', {'value': 'x'}))",
    )
    forger.still_works()


def test_a_channel_that_is_dropped_repeatedly_ends_its_kernel(forger: Attacker, vitals: Vitals) -> None:
    """User code listens on the port of iopub, and closes each connection at once."""
    listen = (
        "import socket, threading\n"
        "def hang_up():\n"
        "    server = socket.socket()\n"
        "    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    while True:\n"
        "        try:\n"
        "            server.bind(('0.0.0.0', 50002))\n"
        "            break\n"
        "        except OSError: pass\n"
        "    server.listen(100)\n"
        "    while True:\n"
        "        connection, _ = server.accept()\n"
        "        try: connection.sendall(b'\\xff' * 5000)\n"
        "        except OSError: pass\n"
        "        connection.close()\n"
        "threading.Thread(target=hang_up, daemon=True).start()\n"
        "on_iopub(printed('before'))\n"
        "kernel.iopub_thread.schedule(lambda: kernel.iopub_thread.socket.close(0))\n"
        "import time\n"
        "time.sleep(5)"
    )
    with vitals.neighbour.calling(), vitals.bounded():
        ran = forger.run(listen, timeout=8)
    assert (ran.status, ran.error_code, ran.state) == ("died", "SB010", "lost"), ran.result
    forger.works_again()


# -- violence ---------------------------------------------------------------------------------------------------

VIOLENCE = {
    "kills its kernel": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "leaves": "import os\nos._exit(0)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "kills its group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
}


@pytest.mark.parametrize("code", VIOLENCE.values(), ids=VIOLENCE)
def test_the_death_of_a_kernel_is_reported(evil: Attacker, vitals: Vitals, code: str) -> None:
    ran = evil.run(code, timeout=20)
    assert (ran.status, ran.error_code, ran.state) == ("died", "SB010", "lost"), ran.result
    hold("the end of a kernel that is no more", ran.seconds, lambda: AT_ONCE * vitals.neighbour.usual)
    evil.works_again()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_a_signal_to_the_first_process_harms_only_its_own_session(evil: Attacker, number: str) -> None:
    evil.run(f"import os, signal, time\nos.kill(1, signal.{number})\ntime.sleep(0.5)", timeout=5)
    evil.recovers()


@pytest.mark.parametrize(
    "code",
    [
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        "import re\nre.match(r'(a+)+$', 'a' * 45 + 'b')",
    ],
    ids=["stopped", "caught", "in the interpreter"],
)
def test_a_cell_that_no_interrupt_reaches_ends_with_its_kernel(evil: Attacker, vitals: Vitals, code: str) -> None:
    with vitals.neighbour.calling():
        ran = evil.run(code, timeout=2)
    assert (ran.status, ran.error_code) == ("timeout", "SB005"), ran.result
    evil.recovers()


MUTILATIONS = {
    "output closed": "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdout = sys.stderr = None",
    "descriptors closed": "import os\nos.closerange(3, 256)",
    "no run_cell": "get_ipython().run_cell = get_ipython().run_cell_async = None",
    "another key": "get_ipython().kernel.session.key = b'another'",
    "loop stopped": "get_ipython().kernel.io_loop.stop()",
    "no builtins": "import builtins\nfor name in ('print', 'getattr', 'isinstance', 'len'): delattr(builtins, name)",
    "shut down": "get_ipython().kernel.do_shutdown(False)",
}


@pytest.mark.parametrize("code", MUTILATIONS.values(), ids=MUTILATIONS)
def test_a_mutilated_kernel_is_used_or_replaced_but_never_waited_for(evil: Attacker, code: str) -> None:
    evil.run(code, timeout=2)
    if evil.run("print(6 * 7)", timeout=2).text != "42\n":
        restarted = evil.gateway.call("POST", f"/v1/sessions/{evil.session}/restart")
        assert restarted.status_code == 200, restarted.text
        assert evil.text("print(6 * 7)") == "42\n"


# -- activity beside and after the cell -------------------------------------------------------------------------


def test_a_bare_fork_in_a_cell_does_not_end_the_cell_twice(evil: Attacker) -> None:
    ran = evil.run("import os, time\npid = os.fork()\nprint('forked', flush=True)\ntime.sleep(0.2)", timeout=5)
    assert "forked" in ran.text
    evil.recovers()


def test_output_after_the_cell_stays_in_its_session(evil: Attacker, sibling: Attacker, vitals: Vitals) -> None:
    late = (
        "import threading, time, subprocess\n"
        "def later():\n"
        "    for _ in range(20):\n"
        "        time.sleep(0.1)\n"
        "        print('LATE', flush=True)\n"
        "threading.Thread(target=later).start()\n"
        "child = subprocess.Popen(['sh', '-c', 'for i in 1 2 3 4 5 6 7 8; do sleep 0.2; echo LATE; done'])\n"
        "print('now')"
    )
    ran = evil.expect("ok", late)
    assert "now\n" in ran.text
    assert ran.text.count("LATE") < 20, "it has waited for its thread"
    for _ in range(4):
        assert sibling.text("import time; time.sleep(0.2); print(1)") == "1\n"
        vitals.neighbour.ask()
    second = evil.expect("ok", "time.sleep(1); print('second')")
    assert "second" in second.text
    assert second.text.replace("LATE", "").split() == ["second"]  # at most the output of its own threads


def test_a_process_that_outlives_its_cell_keeps_no_session_alive(
    new_attacker: Callable[[], Attacker], vitals: Vitals
) -> None:
    evil = Attacker(vitals.gateway, "short-lived")
    made = vitals.gateway.call("POST", "/v1/sessions", json={"name": evil.session, "idle_timeout": 1.5})
    assert made.status_code == 201, made.text
    container = evil.container["Id"]  # now, because the session may end soon after the cell
    evil.text(
        "import subprocess, threading, time\n"
        "def tick():\n"
        "    while True:\n"
        "        print('tick', flush=True)\n"
        "        time.sleep(0.2)\n"
        "threading.Thread(target=tick, daemon=True).start()\n"
        "subprocess.Popen(['sh', '-c', 'while :; do echo tick; sleep 0.2; done'], start_new_session=True)"
    )
    wait_until(
        lambda: vitals.gateway.call("GET", f"/v1/sessions/{evil.session}").status_code == 404,
        lambda: "it is there",
        seconds=20,
    )
    wait_until(lambda: container not in [item["Id"] for item in vitals.gateway.containers()])


def test_a_process_that_hides_ends_with_its_session(evil: Attacker) -> None:
    container = evil.container["Id"]
    evil.text(
        "import subprocess\n"
        "hidden = 'while :; do sleep 1; done'\n"
        "subprocess.Popen(['setsid', 'sh', '-c', f'({hidden}) & exec sleep 600'], start_new_session=True)"
    )
    assert _cgroups_of(container)
    evil.end()
    assert container not in [item["Id"] for item in evil.gateway.containers()]
    assert _cgroups_of(container) == []


def _cgroups_of(container: str) -> list[str]:
    """Return the control groups that the host still has for a container."""
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{container}")]


def test_payloads_and_expressions_of_a_reply_are_dropped(forger: Attacker) -> None:
    payload = "[{'source': 'set_next_input', 'text': 'evil()'}, {'source': 'ask_exit'}, {'source': 'page'}]"
    ran = forger.expect("ok", f"on_shell(replied(payload={payload}, user_expressions={{'a': 'b'}}))")
    assert not {"payload", "user_expressions"} & set(ran.result)
    forger.still_works()
