"""Bash in a session: one Bash for all cells, with output, statuses and interrupts as a shell has them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import exists, process_only, streamed, until, write


@pytest.fixture
def shell(gateway: Gateway, session: str) -> str:
    """A Bash session."""
    return made(gateway, session)


def made(gateway: Gateway, name: str, **more: Any) -> str:
    answer = gateway.call("POST", "/v1/sessions", json={"name": name, "language": "bash"} | more)
    assert answer.status_code == 201, answer.text
    return name


def streams(reply: dict[str, Any]) -> dict[str, str]:
    """Return the text of each stream."""
    found: dict[str, str] = {}
    for output in reply["outputs"]:
        if output["output_type"] == "stream":
            found[output["name"]] = found.get(output["name"], "") + output["text"]
    return found


def error_of(reply: dict[str, Any]) -> tuple[str, str]:
    """Return name and value of the only error."""
    (error,) = (output for output in reply["outputs"] if output["output_type"] == "error")
    return error["ename"], error["evalue"]


@pytest.mark.gate
def test_variables_functions_and_directory_stay(gateway: Gateway, shell: str) -> None:
    gateway.execute(shell, "kept=41; declare -A map=([a]=1); add() { echo $((kept + $1)); }; mkdir sub; cd sub")
    reply = gateway.execute(shell, "add 1; echo ${map[a]}; basename $PWD")
    assert (reply["status"], reply["execution_count"], text_of(reply)) == ("ok", 2, "42\n1\nsub\n")


def test_sessions_share_nothing(gateway: Gateway, shell: str) -> None:
    other = made(gateway, f"{shell}-2")
    gateway.execute(shell, "export kept=1; touch kept")
    assert gateway.text(other, "echo ${kept:-none} $(ls | wc -l)") == "none 0\n"
    gateway.call("DELETE", f"/v1/sessions/{other}")


def test_stdout_and_stderr_are_apart_and_unicode_is_whole(gateway: Gateway, shell: str) -> None:
    reply = gateway.execute(shell, "printf 'a\\xc3'; sleep 0.2; printf '\\xa4\\xff'; echo err >&2")
    assert streams(reply) == {"stdout": "aä\ufffd", "stderr": "err\n"}


def test_output_arrives_as_it_is_printed(gateway: Gateway, shell: str) -> None:
    code = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"
    seen: list[str] = []
    with streamed(gateway, shell, code) as events:
        for event in events:
            if event["type"] == "output":
                seen.append(event["output"]["text"])
                write(gateway, shell, "go")
    assert seen == ["first\n", "second\n"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("true; (exit 3)", "3"),
        ("no-such-command", "127"),
        ("if true; then", "2"),
        ("set -u; echo $nothing", "1"),
    ],
)
def test_a_status_other_than_zero_is_an_error_with_the_status(
    gateway: Gateway, shell: str, code: str, status: str
) -> None:
    reply = gateway.execute(shell, code)
    assert (reply["status"], error_of(reply)) == ("error", ("", status))
    assert reply["outputs"][-1]["traceback"] == [f"exit status {status}"]
    assert gateway.text(shell, "echo on") == "on\n"


def test_code_of_many_lines_runs_as_it_is(gateway: Gateway, shell: str) -> None:
    code = "cat <<'END'\n$x \"it's\" !! \\\nEND\nfor word in a \\\n  b; do\n  echo $word\ndone # the end"
    assert gateway.text(shell, code) == '$x "it\'s" !! \\\na\nb\n'
    assert gateway.text(shell, "read line || echo no input") == "no input\n"


def test_ten_megabytes_at_once_are_all_there(gateway: Gateway, shell: str) -> None:
    reply = gateway.execute(shell, "head -c 9000000 /dev/zero | tr '\\0' x", timeout=60)
    assert (len(text_of(reply)), reply["status"], reply["truncated"]) == (9_000_000, "ok", False)


@pytest.mark.parametrize(
    "code", ["sleep 300; echo no", "while :; do :; done", "set -o pipefail; yes | cat > /dev/null", "(sleep 300)"]
)
def test_a_deadline_ends_the_command_and_keeps_the_variables(gateway: Gateway, shell: str, code: str) -> None:
    gateway.execute(shell, "kept=1")
    reply = gateway.execute(shell, code, timeout=1)
    assert (reply["status"], reply["state"], error_of(reply)) == ("timeout", "preserved", ("", "130"))
    assert gateway.text(shell, "echo $kept") == "1\n"


async def test_an_interrupt_ends_the_command_and_keeps_the_variables(gateway: Gateway, shell: str) -> None:
    gateway.execute(shell, "kept=1")
    code = "touch begun; sleep 300"
    cell = asyncio.create_task(asyncio.to_thread(gateway.execute, shell, code))  # noqa: TID251 - it is awaited
    await asyncio.to_thread(until, lambda: exists(gateway, shell, "begun"))
    assert gateway.call("POST", f"/v1/sessions/{shell}/interrupt").json() == {"interrupted": True}
    reply = await cell
    assert (reply["status"], reply["state"], reply["error"]) == ("interrupted", "preserved", None)
    assert gateway.text(shell, "echo $kept") == "1\n"


LINES = "".join(f"{number}\n" for number in range(1, 20_001))
ALL = {
    "a program": ("seq 20000", {"stdout": LINES}),
    "an error stream": ("seq 20000 >&2; echo end", {"stdout": "end\n", "stderr": LINES}),
    "a pipeline": ("seq 20000 | tee copy | cat; cat copy >&2", {"stdout": LINES, "stderr": LINES}),
    "characters": ("for _ in {1..999}; do printf '漢字🎉é'; done; cat zh.txt", {"stdout": "漢字🎉é" * 20_999}),
}


@pytest.mark.parametrize("code", ALL)
def test_all_that_commands_print_is_there(gateway: Gateway, shell: str, code: str) -> None:
    write(gateway, shell, "zh.txt", ("漢字🎉é" * 20_000).encode())
    assert streams(gateway.execute(shell, ALL[code][0])) == ALL[code][1]


@process_only
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("code", ALL)
def test_all_is_there_a_hundred_times_beside_busy_loops(gateway: Gateway, shell: str, code: str) -> None:
    write(gateway, shell, "zh.txt", ("漢字🎉é" * 20_000).encode())
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        found = [streams(gateway.execute(shell, ALL[code][0])) for _ in range(100)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert found == [ALL[code][1]] * 100


def test_a_process_in_the_background_does_not_hold_the_cell(gateway: Gateway, shell: str) -> None:
    assert "started\n" in gateway.text(shell, "sleep 300 & echo started")
    assert gateway.text(shell, "kill %1; wait 2> /dev/null; echo ended").endswith("ended\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sleep 300 & echo last; exit 3", 3),
        ("echo last; exit", 0),
        ("set -e; echo last; false; echo no", 1),
        ("trap 'echo last' EXIT; exit 4", 4),
        ("exec sh -c 'echo last; exit 5'", 5),
        ("echo last; kill -9 $$", 137),
    ],
)
def test_the_end_of_bash_is_reported_with_its_exit_code_and_the_files_are_kept(
    gateway: Gateway, shell: str, code: str, status: int
) -> None:
    gateway.execute(shell, "kept=1; touch file")
    reply = gateway.execute(shell, code)
    assert (reply["status"], reply["state"], reply["error"]["details"]) == ("died", "lost", {"exit_code": status})
    assert streams(reply)["stdout"] == "last\n"
    after = gateway.execute(shell, "echo ${kept:-none} $(ls)")
    assert (after["state"], text_of(after)) == ("lost", "none file\n")


def test_the_end_of_bash_between_cells_is_reported(gateway: Gateway, shell: str) -> None:
    gateway.execute(shell, "kept=1; { while [ ! -e go ]; do sleep 0.01; done; kill -9 $$; } & ")
    write(gateway, shell, "go")
    until(lambda: gateway.call("GET", f"/v1/sessions/{shell}").json()["state"] == "dead")
    after = gateway.execute(shell, "echo ${kept:-none}")
    assert (after["state"], text_of(after)) == ("lost", "none\n")


def test_options_for_scripts_end_no_cell_that_succeeds(gateway: Gateway, shell: str) -> None:
    gateway.execute(shell, "set -euo pipefail; kept=1")
    reply = gateway.execute(shell, "echo one")
    assert (reply["status"], reply["state"], text_of(reply)) == ("ok", "preserved", "one\n")
    gateway.execute(shell, "[ -f nothing ] && echo yes")
    gateway.execute(shell, "if true; then")
    assert gateway.text(shell, "echo $? $kept") == "2 1\n"


def test_a_prompt_that_a_cell_sets_is_not_printed(gateway: Gateway, shell: str) -> None:
    gateway.execute(shell, "PS1='(venv) $ '")
    assert streams(gateway.execute(shell, "echo clean")) == {"stdout": "clean\n"}


@process_only
def test_bash_has_the_environment_and_directory_of_its_session(gateway: Gateway, session: str) -> None:
    made(gateway, session, env={"WHO": "me and 'you'"})
    assert gateway.text(session, "echo $WHO; python3 -c 'import os; print(os.getenv(\"WHO\"))'") == "me and 'you'\n" * 2


@process_only
def test_arguments_are_refused(gateway: Gateway, shell: str) -> None:
    answer = gateway.call("POST", f"/v1/sessions/{shell}/execute", json={"code": ":", "arguments": {"a": 1}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "SB002")
