"""Programs as RAGFlow runs them: each in its own kernel, and every row of its executor's table that can occur."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import requests

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.accounts import crash
from tests.kernel_gateway.calls import failure, kernels, others, process_only, raw, sessions, until
from tests.kernel_gateway.ragflow import encoded, run, running, value
from tests.tiers import some

PYTHON, NODEJS = "python", "nodejs"
#: a program that waits for ever and ignores interrupts
STUBBORN = """
import signal, time
def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            time.sleep(300)
        except BaseException:
            pass
"""


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: Gateway) -> Iterator[None]:
    """No program leaves a session or a kernel."""
    yield
    assert running(gateway) == []
    until(lambda: kernels(gateway) == sessions(gateway) + others(gateway), 30)


# -- what main returns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(
            PYTHON,
            "def main(a, b=2):\n    print('hi')\n    return {'a': a, 'b': b, 'name': __name__, 'none': None}",
            marks=pytest.mark.gate,
        ),
        (NODEJS, "async function main({a}) { console.log('hi'); return {a, b: 2, name: 'main', none: null}; }"),
        (NODEJS, "const main = ({a}) => { console.log('hi'); return {a, b: 2, name: 'main', none: null}; }"),
    ],
)
def test_main_is_called_and_its_value_is_returned(gateway: Gateway, language: str, code: str) -> None:
    answer = run(gateway, code, language, arguments={"a": 'it\'s "é"\n{json}'})
    assert answer["result"] == {
        "present": True,
        "type": "json",
        "value": {"a": 'it\'s "é"\n{json}', "b": 2, "name": "main", "none": None},
    }
    assert (answer["status"], answer["stdout"], answer["stderr"], answer["exit_code"]) == ("success", "hi\n", "", 0)
    assert answer["time_used_ms"] > 0


@process_only
def test_the_go_clients_body_is_accepted(gateway: Gateway) -> None:
    assert value(gateway, "def main(): return 2**100", arguments=None, base_image="mine:latest") == 2**100


@process_only
def test_a_main_guard_does_not_run_and_the_program_is_the_module_main(gateway: Gateway) -> None:
    code = "x = 1\nif __name__ == '__main__':\n    x = 2\nimport main as me, pathlib\n"
    code += "def main(): return [me.x, pathlib.Path(__file__).read_text()[:5], __file__.endswith('/main.py')]"
    assert value(gateway, code) == [1, "x = 1", True]


@process_only
def test_a_program_may_run_its_own_event_loop(gateway: Gateway) -> None:
    code = (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 1\ndef main(): return asyncio.run(f())"
    )
    assert value(gateway, code) == 1


@process_only
def test_special_characters_in_code_are_preserved(gateway: Gateway) -> None:
    code = "'''\"\"\"\\\n%time\n!ls\n{json}'''\ndef main(): return 'a\\u2028\\'\"'"
    assert value(gateway, code) == "a\u2028'\""


# -- rows ------------------------------------------------------------------------------------------------------

ERROR = ("program_error", 1)
#: the first ten are part of the gate
ROWS = {
    "raises": (PYTHON, "def main():\n    print('partial')\n    raise ValueError('bad')", *ERROR, "ValueError: bad"),
    "no main": (PYTHON, "x = 1", *ERROR, "has no attribute 'main'"),
    "no JSON": (PYTHON, "def main(): return {1}", *ERROR, "not JSON serializable"),
    "exit 3": (PYTHON, "import sys\ndef main(): sys.exit(3)", "program_error", 3, "exit code 3"),
    "_exit": (PYTHON, "import os\ndef main(): os._exit(5)", "program_error", 5, "kernel has ended"),
    "memory": (PYTHON, "def main(): raise MemoryError", "resource_limit_exceeded", 1, "MemoryError"),
    "syntax": (PYTHON, "def main(:\n", "program_runner_error", -999, "Line -1: Parsing Error: "),
    "throws": (NODEJS, "function main() {\n  throw new Error('bad') }", *ERROR, "Error: bad\n    at main ("),
    "undefined": (NODEJS, "function main() { }", *ERROR, "must return a value"),
    "exit 4": (NODEJS, "function main() { process.exit(4) }", "program_error", 4, "exit code 4"),
    "bad arguments": (PYTHON, "def main(a): pass", *ERROR, "missing 1 required positional argument"),
    "NaN": (PYTHON, "def main(): return float('nan')", *ERROR, "ValueError"),
    "exit text": (PYTHON, "import sys\ndef main(): sys.exit('gone')", *ERROR, "gone\n"),
    "exit with a surrogate": (PYTHON, "import sys\ndef main(): sys.exit('\\ud800')", *ERROR, "\\ud800\n"),
    "exit with a bad object": (
        PYTHON,
        "import sys\nclass Bad:\n  def __str__(self): raise ValueError\ndef main(): sys.exit(Bad())",
        *ERROR,
        "<unprintable Bad object>",
    ),
    "input": (PYTHON, "def main(): return input()", *ERROR, "EOFError"),
    "denied": (
        PYTHON,
        "def main(): raise PermissionError(13, 'Permission denied')",
        "unauthorized_access",
        1,
        "denied",
    ),
    "NUL": (PYTHON, "x = 1\0", "program_runner_error", -999, "Line -1: Parsing Error: "),
    "rejects": (NODEJS, "async function main() { throw new TypeError('bad') }", *ERROR, "TypeError: bad"),
    "no main there": (NODEJS, "const x = 1", *ERROR, "main is not defined"),
    "syntax there": (NODEJS, "function main( {", *ERROR, "SyntaxError"),
    "bigint": (NODEJS, "function main() { return 10n }", *ERROR, "BigInt"),
    "exit later": (
        NODEJS,
        "function main() { setTimeout(() => Deno.exit(6), 10); return new Promise(() => {}) }",
        "program_error",
        6,
        "exit code 6",
    ),
}


@process_only
@pytest.mark.parametrize("row", some(ROWS, gate=10))
def test_each_failing_program_has_its_row_of_the_table(gateway: Gateway, row: str) -> None:
    language, code, status, exit_code, stderr = ROWS[row]
    answer = run(gateway, code, language)
    assert (answer["status"], answer["exit_code"], answer["result"]) == (status, exit_code, None)
    assert stderr in answer["stderr"]
    assert "run_program" not in answer["stderr"]
    assert "runProgram" not in answer["stderr"]


@pytest.mark.parametrize(
    ("language", "code"),
    [(PYTHON, "raise SystemExit"), (PYTHON, "import sys\ndef main(): sys.exit(0)"), (NODEJS, "process.exit(0)")],
)
def test_exit_code_0_without_a_result_is_a_success(gateway: Gateway, language: str, code: str) -> None:
    answer = run(gateway, code, language)
    assert (answer["status"], answer["exit_code"], answer["result"]) == ("success", 0, None)


@process_only
def test_a_traceback_shows_only_lines_of_the_program(gateway: Gateway) -> None:
    stderr = run(gateway, "def main():\n    f()\ndef f():\n    1/0  # here")["stderr"]
    assert stderr.startswith("Traceback (most recent call last):\n")
    assert stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "    1/0  # here\n" in stderr
    assert stderr.count('File "') == stderr.count('main.py"') == 2


TIMEOUT = {"status": "resource_limit_exceeded", "exit_code": -124, "resource_limit_type": "time"}


@pytest.mark.parametrize(
    ("language", "code"),
    some(
        [
            (PYTHON, "import time\nprint('partial')\ndef main(): time.sleep(300)"),
            (PYTHON, STUBBORN),
            (NODEJS, "function main() { for (;;) {} }"),
        ],
        gate=1,
    ),
    ids=["python", "stubborn", "nodejs"],
)
def test_a_program_past_its_timeout_is_ended(gateway: Gateway, language: str, code: str) -> None:
    answer = run(gateway, code, language, "/execute", timeout=1)
    assert (answer["status"], answer["error"], answer["stdout"]) == ("timeout", "Execution timeout", "")


@process_only
def test_run_uses_the_timeout_of_the_gateway(gateway: Gateway) -> None:
    with gateways.gateway("process", execute_timeout="1") as short:
        answer = run(short, "import time\nprint('partial', flush=True)\ndef main(): time.sleep(300)")
        assert {name: answer[name] for name in TIMEOUT} == TIMEOUT
        assert (answer["stderr"], answer["error_code"]) == ("Execution timeout", "SB005")


@pytest.mark.engine
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
@pytest.mark.parametrize(
    ("language", "code"),
    [
        (PYTHON, "def main():\n    kept = []\n    while True: kept.append(b'x' * 10_000_000)"),
        (NODEJS, "function main() { const k = []; for (;;) k.push(Buffer.alloc(10_000_000, 1)) }"),
    ],
)
def test_a_program_above_its_memory_limit_is_ended(gateway: Gateway, language: str, code: str) -> None:
    answer = run(gateway, code, language)
    expected = {"status": "resource_limit_exceeded", "exit_code": -137, "resource_limit_type": "memory"}
    assert {name: answer[name] for name in expected} == expected
    assert (answer["stderr"], answer["error_code"]) == ("Memory limit exceeded (killed by OOM)", "SB006")


@pytest.mark.parametrize(
    ("code", "size", "truncated"),
    [
        ("print('x' * 12_000_000)", 10 * 1024**2, True),
        ("for n in range(10_000): print('x' * 99)", 1_000_000, False),
    ],
)
def test_long_output_is_cut_and_the_result_is_kept(gateway: Gateway, code: str, size: int, *, truncated: bool) -> None:
    answer = run(gateway, f"def main():\n    {code}\n    return 'there'")
    assert (answer["status"], answer["result"]["value"]) == ("success", "there")
    assert (len(answer["stdout"]), answer["truncated"]) == (size, truncated)
    assert answer["omitted_bytes"] == (12_000_001 - size if truncated else 0)


@process_only
def test_a_value_that_is_too_large_is_an_error_and_no_dead_kernel(gateway: Gateway) -> None:
    answer = run(gateway, "def main(): return 'x' * 12_000_000")
    assert (answer["status"], answer["exit_code"]) == ("program_error", 1)
    assert "larger than" in answer["stderr"]


# -- results that are printed, and forged ----------------------------------------------------------------------


@process_only
def test_a_marker_that_the_program_prints_is_its_result(gateway: Gateway) -> None:
    marked = base64.b64encode(json.dumps({"present": True, "value": [1], "type": "json"}).encode()).decode()
    code = f"print('a')\nprint('__RAGFLOW_RESULT__:{marked}')\nprint('__RAGFLOW_RESULT__:')\nprint('b')\n"
    answer = run(gateway, f"{code}raise SystemExit")
    assert (answer["stdout"], answer["result"]["value"]) == ("a\nb\n", [1])
    assert run(gateway, f"{code}def main(): return 2")["result"]["value"] == 2


FORGES = """
def main():
    get = __import__('IPython').get_ipython
    say = get().display_pub.publish
    mime = 'application/vnd.kernel-gateway.run+json'
    for forged in (1, {{}}, {{'exit_code': 0, 'value': '"forged"', 'error': '', 'unread': None, 'artifacts': True}}):
        say({{mime: forged}}, {{}})
    {then}
"""


@process_only
def test_a_forged_result_does_not_change_the_outcome(gateway: Gateway) -> None:
    assert value(gateway, FORGES.format(then="return 'true'")) == "true"
    assert run(gateway, FORGES.format(then="import os; os._exit(0)"))["status"] == "program_error"
    assert run(gateway, FORGES.format(then="raise ValueError"))["status"] == "program_error"
    over = run(gateway, FORGES.format(then="import time; time.sleep(300)"), PYTHON, "/execute", timeout=1)
    assert over["status"] == "timeout"
    assert value(gateway, "def main(): return 'unharmed'") == "unharmed"


# -- artifacts -------------------------------------------------------------------------------------------------

LEAVES = """
import os, pathlib
folder = pathlib.Path('artifacts')
def main():
    (folder / 'plot.PNG').write_bytes(bytes(range(256)) * 4)
    for name in ('.hidden.csv', 'empty.csv', 'notes.txt', 'nested/a.csv'):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('' if name == 'empty.csv' else 'x')
    (folder / 'large.csv').write_bytes(b'x' * (10 * 1024**2 + 1))
    (folder / 'passwd.csv').symlink_to('/etc/passwd')
    os.mkfifo(folder / 'pipe.csv')
    {then}
"""


def test_only_allowed_files_are_returned_as_artifacts(gateway: Gateway) -> None:
    answer = run(gateway, LEAVES.format(then="return 1"))
    (artifact,) = answer["artifacts"]
    assert (artifact["name"], artifact["mime_type"], artifact["size"]) == ("plot.PNG", "image/png", 1024)
    assert base64.b64decode(artifact["content_b64"], validate=True) == bytes(range(256)) * 4
    assert answer["truncated"] is True


def test_a_failed_program_returns_no_artifacts(gateway: Gateway) -> None:
    assert run(gateway, LEAVES.format(then="raise ValueError"))["status"] == "program_error"


def test_at_most_ten_artifacts_are_returned(gateway: Gateway) -> None:
    code = "const fs = require('fs'); function main() { for (let n = 10; n < 22; n++) "
    answer = run(gateway, code + "fs.writeFileSync(`artifacts/${n}.json`, '{}'); return 1 }", NODEJS)
    assert [artifact["name"] for artifact in answer["artifacts"]] == [f"{number}.json" for number in range(10, 20)]


@process_only
def test_a_link_in_place_of_the_artifacts_folder_returns_nothing(gateway: Gateway) -> None:
    answer = run(gateway, "import os\ndef main():\n    os.rmdir('artifacts')\n    os.symlink('/etc', 'artifacts')")
    assert (answer["status"], answer["artifacts"]) == ("success", [])


# -- isolation of programs -------------------------------------------------------------------------------------

TRACES = """
import builtins, pathlib, sys
seen = [hasattr(builtins, 'trace'), 'trace' in sys.modules and hasattr(sys.modules['json'], 'trace'),
        pathlib.Path('trace').exists(), {tmp}]
def main():
    builtins.trace = sys.modules['json'].trace = True
    pathlib.Path('trace').touch()
    {leave}
    return seen
"""


def test_no_run_sees_traces_of_another_run(gateway: Gateway) -> None:
    sandboxed = gateway.isolation == "docker"
    tmp, leave = ("pathlib.Path('/tmp/trace').exists()", "pathlib.Path('/tmp/trace').touch()")
    code = TRACES.format(tmp=tmp if sandboxed else False, leave=leave if sandboxed else "")
    for _ in range(3):
        assert value(gateway, code) == [False, False, False, False]


def test_a_client_that_leaves_ends_its_program(gateway: Gateway) -> None:
    with pytest.raises(requests.ReadTimeout):
        gateway.call("POST", "/run", json={"code_b64": encoded(STUBBORN)}, timeout=2)
    until(lambda: not running(gateway))


@process_only
def test_a_program_leaves_nothing_in_the_ledger_or_the_log(gateway: Gateway) -> None:
    assert value(gateway, "def main(): return 'a-secret-of-the-program'") == "a-secret-of-the-program"
    with closing(sqlite3.connect(gateway.state_dir / "ledger.db")) as ledger:
        for table in ("kept", "ended", "asked"):
            names = [row[0] for row in ledger.execute(f"SELECT name FROM {table}")]  # noqa: S608
            assert not [name for name in names if name.startswith("run-")]
    assert "a-secret-of-the-program" not in gateway.log.read_text()


# -- what RAGFlow's clients do ---------------------------------------------------------------------------------


@process_only
def test_a_run_as_the_python_client_makes_one(gateway: Gateway) -> None:
    """It checks twice that the endpoint is alive, and uses the endpoint as it is written."""
    for endpoint in (gateway.url, f"{gateway.url}/"):
        for _ in range(2):
            told = requests.get(f"{endpoint}/healthz", timeout=5)
            assert (told.status_code, told.json()) == (200, {"status": "ok"})
        body = {"code_b64": encoded("def main(): print('TEST_PASSED')"), "language": "python", "arguments": {}}
        endpoint = endpoint.replace("://", f"://alice:{KEYS['alice']}@")  # noqa: PLW2901 - where it can carry a key
        answer = requests.post(f"{endpoint}/run", json=body, timeout=60).json()
        assert (answer["exit_code"], answer["stdout"]) == (0, "TEST_PASSED\n")
    assert requests.get(gateway.url, timeout=5).json() == {"status": "ok"}


@process_only
def test_a_key_in_the_endpoint_is_not_logged(gateway: Gateway) -> None:
    assert KEYS["alice"] not in gateway.log.read_text()
    assert raw(gateway, "POST", "/run", body=b"{}").status_code == 422


@process_only
def test_an_unreadable_body_is_reported_as_fastapi_does(gateway: Gateway) -> None:
    answer = raw(gateway, "POST", "/run", body=json.dumps({"code_b64": "%", "language": "ruby"}).encode())
    assert answer.status_code == 422
    problems = answer.json["detail"]
    assert [problem["loc"] for problem in problems] == [["body", "code_b64"], ["body", "language"]]
    assert [problem["input"] for problem in problems] == ["%", "ruby"]
    deep = b'{"code_b64": "", "arguments": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}"
    assert raw(gateway, "POST", "/run", body=deep).status_code == 422
    many = raw(gateway, "POST", "/run", body=b'{"code_b64": "", "arguments": {"a": [' + b"[]," * 200_000 + b"0]}}")
    assert (many.status_code, "it has more than" in many.json["detail"][0]["msg"]) == (422, True)
    assert raw(gateway, "POST", "/execute", body=b'{"code_b64": "", "timeout": 0}').status_code == 422


@process_only
def test_the_older_form_is_answered_in_its_own_form(gateway: Gateway) -> None:
    code = "def main(a): print('out'); return {'a': a}"
    answer = run(gateway, code, "python", "/execute", arguments={"a": 1}, timeout=20, max_memory="64m")
    assert {name: answer[name] for name in ("status", "stdout", "stderr", "error")} == {
        "status": "success",
        "stdout": "out\n",
        "stderr": "",
        "error": None,
    }
    assert json.loads(answer["result"]) == {"a": 1}
    assert 0 < answer["execution_time"] < 20


@process_only
def test_a_temporary_refusal_is_an_outcome_and_never_5xx(gateway: Gateway) -> None:
    with gateways.gateway("process", max_sessions_per_tenant="1") as narrow:
        narrow.execute("s", "1")
        answer = run(narrow, "def main(): pass")
        assert (answer["status"], answer["exit_code"]) == ("program_runner_error", -429)
        assert answer["detail"] == "Too many requests, please try again later"
        assert answer["error_code"] == "SB008"
        narrow.call("DELETE", "/v1/sessions/s")
        assert run(narrow, "def main(): pass")["status"] == "success"


@process_only
def test_without_an_image_no_container_is_available(gateway: Gateway) -> None:
    with gateways.gateway("docker", must_be_ready=False, image="kernel-gateway/absent:none") as lame:
        answer = run(lame, "def main(): pass")
        assert (answer["exit_code"], answer["detail"]) == (-10, "no_available_container")
        assert answer["stderr"] == "Container pool is busy"


# -- keys ------------------------------------------------------------------------------------------------------

BODY = json.dumps({"code_b64": encoded("def main(): return 1")}).encode()


@process_only
def test_without_a_sandbox_every_client_needs_a_key(gateway: Gateway) -> None:
    with gateways.gateway("process", keys="") as alone:
        assert failure(raw(alone, "POST", "/run", headers=(), body=BODY)) == (401, "SB020")
        key = (alone.state_dir / "key").read_text().strip()
        assert raw(alone, "POST", "/run", headers=(("X-API-Key", key),), body=BODY).json["exit_code"] == 0


@process_only
def test_with_configured_keys_every_client_needs_a_key(gateway: Gateway) -> None:
    answer = raw(gateway, "POST", "/run", headers=(), body=BODY)
    assert failure(answer) == (401, "SB020")
    assert answer.json["detail"]


@pytest.mark.engine
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
def test_with_a_sandbox_and_without_configured_keys_a_neighbour_needs_no_key(gateway: Gateway) -> None:
    with gateways.gateway("docker", keys="") as alone:
        assert raw(alone, "POST", "/run", headers=(), body=BODY).json["result"]["value"] == 1
        for header in (("X-Forwarded-For", "192.0.2.1"), ("Sec-Fetch-Site", "none"), ("Origin", "http://evil.example")):
            assert failure(raw(alone, "POST", "/run", headers=(header,), body=BODY)) == (401, "SB020")
        assert failure(raw(alone, "GET", "/v1/sessions", headers=())) == (401, "SB020")
        evil = (("Host", "evil.example"),)
        assert failure(raw(alone, "POST", "/run", headers=evil, body=BODY)) == (421, "SB021")


@pytest.mark.engine
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
def test_containers_of_a_killed_gateway_are_removed_by_the_next_gateway(gateway: Gateway, tmp_path: Path) -> None:
    with gateways.gateway("docker", state_dir=str(tmp_path)) as killed, ThreadPoolExecutor(1) as threads:
        cut_off = threads.submit(run, killed, STUBBORN)
        until(lambda: running(killed) and killed.containers())
        crash(killed)
        with pytest.raises(requests.ConnectionError):
            cut_off.result()
        assert killed.containers()  # there is something to remove
    with gateways.gateway("docker", state_dir=str(tmp_path)) as following:
        assert running(following) == []
        until(lambda: kernels(following) == others(following), 30)
