"""The real Python SDK of E2B, newest release, unmodified: sandboxes, contexts and code on this gateway."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from e2b import CommandExitException, PtySize, Volume
from e2b.exceptions import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    SandboxNotFoundException,
    TimeoutException,
    VolumeException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox, SandboxMetrics, SandboxQuery, SandboxState

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.e2b import control

pytestmark = pytest.mark.timeout(300)
Options = dict[str, Any]
MIB = 1024**2


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", pool_size="1") as serving:
        yield serving
        assert serving.errors() == []


def options(gateway: Gateway, tenant: str = "alice") -> Options:
    """Return the options of the SDK with which it finds the gateway."""
    return {"api_key": KEYS[tenant], "api_url": gateway.url, "sandbox_url": gateway.url, "retries": 0}


@contextmanager
def made(gateway: Gateway, **more: Any) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=300, **options(gateway), **more)
    try:
        yield sandbox
    finally:
        sandbox.kill()


@pytest.fixture
def sandbox(gateway: Gateway) -> Iterator[Sandbox]:
    with made(gateway) as sandbox:
        yield sandbox


def life(gateway: Gateway) -> None:
    """Use a sandbox from its creation to its end."""
    own = options(gateway)
    sandbox = Sandbox.create(timeout=120, metadata={"a b": "ä&="}, envs={"WHO": "me"}, **own)
    try:
        assert sandbox.is_running()
        info = sandbox.get_info()
        assert (info.metadata, info.template_id, info.state.value) == ({"a b": "ä&="}, "code-interpreter-v1", "running")
        assert 100 < (info.end_at - info.started_at).total_seconds() < 300
        execution = sandbox.run_code("import os\nprint(os.environ['WHO'])\nx = 20\nx + 1")
        assert (execution.text, execution.logs.stdout, execution.execution_count) == ("21", ["me\n"], 1)
        again = Sandbox.connect(sandbox.sandbox_id, timeout=600, **own)
        assert again.run_code("x").text == "20"
        assert sandbox.run_code("const y = 5; y * 2", language="javascript").text == "10"
        assert sandbox.run_code("y", language="js").text == "5"
        assert {context.language for context in sandbox.list_code_contexts()} == {"python", "javascript"}
        figure = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
        (plot,) = sandbox.run_code(figure).results
        assert plot.png
        assert not plot.extra
        failed = sandbox.run_code("def f():\n    raise LookupError('what')\nf()")
        assert failed.error is not None
        assert (failed.error.name, failed.error.value) == ("LookupError", "what")
        assert "line 2" in failed.error.traceback
        sandbox.files.write("made here/ä.txt", "grüße")
        assert sandbox.run_code("open('made here/ä.txt').read()").text == "grüße"
        sandbox.run_code("open('/tmp/answer', 'wb').write(bytes(range(256)))")
        assert sandbox.files.read("/tmp/answer", format="bytes") == bytearray(range(256))
        assert {"made here"} <= {entry.name for entry in sandbox.files.list("/home/user")}
        command = sandbox.commands.run("cat 'made here/ä.txt'; echo $WHO >&2; test -t 1 || echo !")
        assert (command.stdout, command.stderr, command.exit_code) == ("grüße!\n", "me\n", 0)
        terminal = sandbox.pty.create(PtySize(rows=20, cols=50))
        sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
        shown: list[bytes] = []
        terminal.wait(on_pty=shown.append)
        assert b"20 50" in b"".join(shown)
        assert [each.sandbox_id for each in Sandbox.list(**own).next_items()] == [sandbox.sandbox_id]
        with pytest.raises(TimeoutException):
            sandbox.run_code("import time; time.sleep(300)", timeout=1)
        assert sandbox.run_code("x").text == "20"
    finally:
        assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(TimeoutException, match="was not found"):
        sandbox.run_code("1")


def test_a_sandbox_lives_its_whole_life(gateway: Gateway) -> None:
    life(gateway)


def test_a_list_by_time_includes_the_sandbox_of_that_time(gateway: Gateway) -> None:
    with made(gateway, metadata={"list": "by time"}) as sandbox:
        begun = sandbox.get_info().started_at
        for since, listed in ((begun, [sandbox.sandbox_id]), (begun + timedelta(seconds=1), [])):
            query = SandboxQuery(metadata={"list": "by time"}, started_after=since)
            found = Sandbox.list(query=query, **options(gateway)).next_items()
            assert [each.sandbox_id for each in found] == listed


def test_a_listing_has_what_is_in_a_directory_behind_the_directory(sandbox: Sandbox) -> None:
    for path in ("d/one/inner", "d/two/inner", "d/one-more"):
        sandbox.files.make_dir(path)
    found = [each.path.removeprefix("/home/user/d/") for each in sandbox.files.list("d", depth=2)]
    assert found == ["one", "one/inner", "one-more", "two", "two/inner"]


def test_the_example_works_when_pasted(gateway: Gateway) -> None:
    page = (Path(__file__).parents[2] / "docs/clients/e2b.md").read_text()
    (settings,) = re.findall(r"^```sh\n(export E2B(?:.*\n)*?)```$", page, re.MULTILINE)
    (code,) = re.findall(r"^```python\n(from e2b(?:.*\n)*?)```$", page, re.MULTILINE)
    settings = settings.replace("http://127.0.0.1:8888", gateway.url).replace("=KEY", f"={KEYS['alice']}")
    pasted = f"{settings}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(["bash", "-eu", "-c", pasted], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    text, url, lines = done.stdout.split()
    assert (text, lines) == ("42", "1")
    assert url.startswith(f"{gateway.url}/files?path=report.csv&signature=v1_")


@pytest.mark.engine
@pytest.mark.gate
def test_a_sandboxed_sandbox_lives_its_whole_life() -> None:
    with gateways.gateway("docker") as gateway:
        life(gateway)


@pytest.mark.engine
def test_a_warm_sandboxed_sandbox_is_one_sandbox_and_outlives_a_killed_gateway(tmp_path: Path) -> None:
    with gateways.gateway("docker", state_dir=str(tmp_path), sandbox_pool_size="1", pool_max="1") as first:
        until(lambda: "kernel_gateway_warm_kernels 1.0" in first.call("GET", "/metrics", tenant=None).text)
        before = Sandbox.create(timeout=600, envs={"WHO": "me"}, **options(first))
        before.files.write("file", "text")
        code = "import os; open('/tmp/cell', 'w').write(os.environ['WHO']); x = open('file').read(); x"
        assert before.run_code(code).text == "text"
        found = before.commands.run("cat /tmp/cell file; echo $WHO; touch /tmp/command; ls -a /tmp").stdout
        assert found == "metextme\n.\n..\ncell\ncommand\n"
        further = before.create_code_context()
        assert before.run_code("os.listdir('/tmp')", context=further).error is not None
        assert (
            before.run_code("import os; ' '.join(sorted(os.listdir('/tmp')))", context=further).text == "cell command"
        )
        leases = first.call("GET", "/metrics", tenant=None).text
        assert 'kernel_gateway_pool_leases_total{language="sandbox",result="hit"} 1.0' in leases
        first.process.kill()
        first.process.wait()
    with gateways.gateway("docker", state_dir=str(tmp_path)) as second:
        after = Sandbox.connect(before.sandbox_id, **options(second))
        assert after.run_code("x").text == "text"
        assert after.commands.run("cat file").stdout == "text"
        assert after.kill()


@pytest.mark.engine
def test_commands_of_a_sandboxed_sandbox_find_what_cells_find() -> None:
    with gateways.gateway("docker") as gateway, made(gateway) as sandbox:

        def run(command: str, **options: Any) -> str:
            return str(sandbox.commands.run(command, **options).stdout)

        assert run("python3 -c 'import numpy; print(numpy.__name__)'") == "numpy\n"
        assert run("command -v python pip") == "/opt/venv/bin/python\n/opt/venv/bin/pip\n"
        assert run("echo $PATH") == sandbox.run_code("import os; print(os.environ['PATH'])").logs.stdout[0]
        terminal = sandbox.pty.create(PtySize(rows=20, cols=200))
        sandbox.pty.send_stdin(terminal.pid, b"echo; command -v pip; exit\n")
        shown: list[bytes] = []
        terminal.wait(on_pty=shown.append)
        assert b"/opt/venv/bin/pip" in b"".join(shown)
        # As OpenAI's Agents SDK begins.
        run("mkdir -p -- /workspace", cwd="/")
        sandbox.files.make_dir("/workspace")
        assert run("touch a; pwd", cwd="/workspace") == "/home/user\n"
        assert run("whoami; echo ~ ~user; cd; pwd; id -gn") == "user\n/home/user /home/user\n/home/user\nuser\n"
        sandbox.run_code("import os, getpass; open(os.path.expanduser(f'~/{getpass.getuser()}'), 'w')")
        told = [(entry.path, entry.owner, entry.group) for entry in sandbox.files.list("~")]
        assert told == [(f"/home/user/{name}", "user", "user") for name in ("a", "user")]


def busy(sandbox: Sandbox, least: float, most: float) -> SandboxMetrics:
    """Wait until it uses so many percent of its processors, which other work on the machine delays."""
    return until(lambda: next((now for now in sandbox.get_metrics() if least < now.cpu_used_pct < most), None))


@pytest.mark.engine
def test_a_sandbox_tells_what_all_of_it_uses() -> None:
    with gateways.gateway("docker", cpus="0.5") as gateway, made(gateway) as sandbox:
        before = busy(sandbox, -1, 20)  # its start takes all that it may have
        assert (before.cpu_count, before.mem_total) == (1, 512 * MIB)
        # Beside the 256 MiB a disk has room for what its file system needs: a 16th and 1 MiB (`kernel_image/disks.py`).
        assert 256 * MIB <= before.disk_total <= (256 + 16 + 1) * MIB
        sandbox.run_code("kept = b'x' * (100 << 20); open('file', 'wb').write(bytes(20 << 20))")
        sandbox.run_code("import threading\ndef work():\n    while True: pass\nthreading.Thread(target=work).start()")
        after = busy(sandbox, 25, 60)  # one of two containers works, so half would be all
        assert after.mem_total == 1024 * MIB
        assert after.mem_used > before.mem_used + 90 * MIB
        assert 15 * MIB < after.disk_used - before.disk_used < 30 * MIB
        past = after.timestamp - timedelta(hours=1)
        assert sandbox.get_metrics(end=past) == []


@pytest.mark.engine
def test_a_sandbox_outlives_a_restart_of_the_gateway_with_its_token_and_time(tmp_path: Path) -> None:
    with gateways.gateway("docker", state_dir=str(tmp_path), keep_sessions="true") as first:
        before = Sandbox.create(timeout=600, metadata={"a": "b"}, **options(first))
        before.run_code("x = 20")
        before.files.write("file", "text")
        ends = before.get_info().end_at
    with gateways.gateway("docker", state_dir=str(tmp_path)) as second:
        headers = {"E2b-Sandbox-Id": before.sandbox_id, "E2b-Sandbox-Port": "49983"}
        headers["X-Access-Token"] = str(before._envd_access_token)
        answer = requests.get(f"{second.url}/files?path=file", headers=headers, timeout=60)
        assert (answer.status_code, answer.text) == (200, "text")
        after = Sandbox.connect(before.sandbox_id, timeout=1, **options(second))
        assert (after.get_info().end_at, after.get_info().metadata) == (ends, {"a": "b"})
        assert after.run_code("x + 1").text == "21"
        assert after.kill()


async def test_the_asynchronous_sdk_does_the_same(gateway: Gateway) -> None:
    sandbox = await AsyncSandbox.create(timeout=120, **options(gateway))
    try:
        runs = [sandbox.run_code(f"{number} + 1", language="python") for number in range(3)]
        assert [execution.text for execution in await asyncio.gather(*runs)] == ["1", "2", "3"]
        context = await sandbox.create_code_context(language="js")
        assert (await sandbox.run_code("1 + 1", context=context)).text == "2"
        assert await sandbox.is_running()
    finally:
        assert await sandbox.kill()


def test_outputs_reach_callbacks_as_they_happen(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context()
    seen: list[str] = []

    def on_stdout(message: Any) -> None:
        seen.append(message.line)
        sandbox.run_code(f"open('seen-{len(seen)}', 'w').close()", context=context)

    code = """
import pathlib, time
for number in 1, 2:
    print(number, flush=True)
    while not pathlib.Path(f'seen-{number}').exists(): time.sleep(0.01)
1 / 0
"""
    failures: list[Any] = []
    sandbox.run_code(code, on_stdout=on_stdout, on_error=failures.append)
    assert seen == ["1\n", "2\n"]
    assert [failure.name for failure in failures] == ["ZeroDivisionError"]


def test_contexts_are_apart_and_share_their_files(sandbox: Sandbox) -> None:
    one, two = sandbox.create_code_context(cwd="/home/user/one"), sandbox.create_code_context()
    assert [context.id for context in sandbox.list_code_contexts()][-2:] == [one.id, two.id]
    assert (one.cwd, two.cwd) == ("/home/user/one", "/home/user")
    sandbox.run_code("x = 1; open('file', 'w').write('text')", context=one)
    assert sandbox.run_code("open('one/file').read()", context=two).text == "text"
    error = sandbox.run_code("x", context=two).error
    assert error is not None
    assert error.name == "NameError"
    sandbox.restart_code_context(one)
    assert (error := sandbox.run_code("x", context=one).error)
    assert error.name == "NameError"
    sandbox.remove_code_context(two)
    with pytest.raises(NotFoundException, match=two.id):
        sandbox.run_code("1", context=two)


def test_variables_of_a_run_are_those_of_the_run(gateway: Gateway) -> None:
    with made(gateway, envs={"A": "global"}) as sandbox:
        value = 'it\'s "quoted" \\ and\nlong; import os'
        assert sandbox.run_code("import os; print(os.environ['A'])", envs={"A": value}).logs.stdout == [f"{value}\n"]
        assert sandbox.run_code("os.environ['A']").text == "global"


def test_bash_keeps_its_state_and_has_the_variables_of_sandbox_and_run(gateway: Gateway) -> None:
    with made(gateway, envs={"A": "global"}) as sandbox:
        sandbox.run_code("kept=1; mkdir sub; cd sub", language="bash")
        run = sandbox.run_code("echo $kept ${PWD##*/} $A $B; false", language="bash", envs={"B": "it's $A"})
        assert (run.logs.stdout, run.error and run.error.value) == (["1 sub global it's $A\n"], "1")
        assert sandbox.run_code("echo ${B-unset}", language="bash").logs.stdout == ["unset\n"]


PLOTS = {
    "line": "ax.plot([1, 2], [3, 4], label='a'); ax.set_xlabel('t (s)'); ax.set_title('T')",
    "scatter": "ax.scatter([1, 2], [3, 4])",
    "bar": "ax.bar(['a', 'b'], [1, 2])",
    "pie": "ax.pie([1, 3], labels=['x', 'y'])",
    "box_and_whisker": "ax.boxplot([[1, 2, 3, 4], [2, 3, 4, 9]], patch_artist=True)",
    "unknown": "ax.imshow([[1, 2]])",
}


def test_a_figure_has_its_chart_beside_its_picture(sandbox: Sandbox) -> None:
    charts = {}
    for kind, code in PLOTS.items():
        run = sandbox.run_code(f"import matplotlib.pyplot as plt; fig, ax = plt.subplots(); {code}; plt.show()")
        (result,) = run.results
        assert (result.chart.type.value, bool(result.png), result.extra) == (kind, True, {}), run.logs
        assert run.logs.stderr == []
        charts[kind] = result.chart
    line = charts["line"]
    assert (line.title, line.x_label, line.x_unit, line.y_label) == ("T", "t (s)", "s", None)
    assert [(each.label, each.points) for each in line.elements] == [("a", [(1.0, 3.0), (2.0, 4.0)])]
    assert [(each.label, each.value) for each in charts["bar"].elements] == [("a", 1.0), ("b", 2.0)]
    assert [each.angle for each in charts["pie"].elements] == [90.0, 270.0]
    assert charts["scatter"].elements[0].points == [(1.0, 3.0), (2.0, 4.0)]
    assert charts["box_and_whisker"].elements[0].median == 2.5
    two = "fig, axes = plt.subplots(2); axes[0].plot([1]); axes[1].bar([1, 2], [1, 2]); plt.show()"
    (result,) = sandbox.run_code(two).results
    assert [each.type.value for each in result.chart.elements] == ["line", "bar"]


def test_a_table_has_its_data_and_a_list_is_json(sandbox: Sandbox) -> None:
    columns = "{'a': [1.5, None], 'at': [pd.Timestamp('2026-01-02'), pd.NaT], 3: ['x', 'y']}"
    (result,) = sandbox.run_code(f"import pandas as pd; pd.DataFrame({columns})").results
    assert result.data == {"a": [1.5, None], "at": ["2026-01-02T00:00:00", None], "3": ["x", "y"]}
    assert result.html
    for columns in ("{('a', 'b'): [1], ('a', 'c'): [2]}", "{'a': [2**64]}"):  # JSON cannot hold these
        (result,) = sandbox.run_code(f"pd.DataFrame({columns})").results
        assert (result.data, bool(result.html)) == (None, True)
    run = sandbox.run_code("pd.DataFrame([[1, 2]], columns=['a', 'a'])")
    assert (run.results[0].data, run.logs.stderr) == ({"a": [2]}, [])
    (result,) = sandbox.run_code("{'a': [1, float('inf')]}").results
    assert (result.json, result.text) == ({"a": [1, None]}, "{'a': [1, inf]}")
    (result,) = sandbox.run_code("[object]").results
    assert "json" not in result.formats()


def test_an_image_that_is_saved_is_shown_to_these_clients(sandbox: Sandbox) -> None:
    made = "from PIL import Image; image = Image.new('RGB', (8, 8)); image.{}"
    for call in ("show()", "save('image.png')"):
        (result,) = sandbox.run_code(made.format(call)).results
        assert (bool(result.png), result.is_main_result) == (True, False)
    assert sandbox.files.list("/root")[0].name == "image.png"
    assert not sandbox.run_code("import io; image.save(io.BytesIO(), 'PNG')").results
    own = sandbox.run_code("saving = Image.Image.save = lambda self, name: print(name); image.save('a')")
    assert (own.logs.stdout, own.results) == (["a\n"], [])
    assert sandbox.run_code("Image.Image.save.__wrapped__ is saving").text == "True"


def test_a_run_right_after_one_that_timed_out_runs(sandbox: Sandbox) -> None:
    for number in range(3):
        with pytest.raises(TimeoutException):
            sandbox.run_code("import time; time.sleep(300)", timeout=0.5)
        assert sandbox.run_code(f"{number}", timeout=60).text == str(number)


def test_a_sandbox_that_is_killed_during_a_run_is_said_to_be_killed(gateway: Gateway, sandbox: Sandbox) -> None:
    begun = threading.Event()

    def kill() -> None:
        begun.wait(60)
        assert Sandbox.kill(sandbox.sandbox_id, **options(gateway))

    killer = threading.Thread(target=kill)
    killer.start()
    code = "print('begun', flush=True)\nimport time; time.sleep(300)"
    with pytest.raises(Exception, match="killed while the request was in progress"):
        sandbox.run_code(code, on_stdout=lambda _: begun.set())
    killer.join()


def test_a_sandbox_ends_when_its_time_is_over(gateway: Gateway, sandbox: Sandbox) -> None:
    sandbox.set_timeout(1)
    until(lambda: not sandbox.is_running())
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **options(gateway))


def test_pages_and_filters_of_a_list(gateway: Gateway) -> None:
    with made(gateway, metadata={"of": "pages"}) as one, made(gateway, metadata={"of": "pages"}) as two, made(gateway):
        query: Any = {"metadata": {"of": "pages"}}
        listed = Sandbox.list(query=SandboxQuery(**query), limit=1, **options(gateway))
        pages = [[each.sandbox_id for each in listed.next_items()] for _ in range(2)]
        assert pages == [[two.sandbox_id], [one.sandbox_id]]
        assert not listed.has_next


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"template": "mine"}, SandboxException, "template 'mine' not found"),
        ({"timeout": 10**6}, SandboxException, "timeout must be at most"),
        ({"mcp": {"exa": {}}}, SandboxException, "MCP"),
        ({"api_key": "e2b_0123456789abcdef0123456789abcdef01234567"}, AuthenticationException, "key"),
    ],
    ids=str,
)
def test_refusals_reach_the_user_with_their_reason(
    gateway: Gateway, asked: Options, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Sandbox.create(**options(gateway) | asked)


def pause_and_resume(gateway: Gateway) -> None:
    """Pause a sandbox while a cell runs, and find everything there again."""
    own = options(gateway)
    sandbox = Sandbox.create(timeout=120, **own)
    try:
        sandbox.run_code("x = [1]; from threading import Thread")
        sandbox.run_code("kept=1", language="bash")
        sandbox.files.write("file", "text")
        pauses: list[bool] = []
        pauser = threading.Thread(target=lambda: pauses.append(sandbox.pause()))
        code = "x.append(2); print('begun', flush=True)\nimport time; time.sleep(300)"
        with pytest.raises(Exception, match="killed while the request was in progress"):
            sandbox.run_code(code, on_stdout=lambda _: pauser.start())
        pauser.join()
        assert (pauses, sandbox.pause()) == ([True], False)
        assert sandbox.get_info().state.value == "paused"
        assert not sandbox.is_running()
        with pytest.raises(TimeoutException, match="was not found"):
            sandbox.run_code("x")
        query = SandboxQuery(state=[SandboxState.PAUSED])
        assert [each.sandbox_id for each in Sandbox.list(query=query, **own).next_items()] == [sandbox.sandbox_id]
        again = Sandbox.connect(sandbox.sandbox_id, timeout=300, **own)
        assert again.get_info().state.value == "running"
        assert (again.run_code("x").text, again.files.read("file")) == ("[1, 2]", "text")
        assert again.run_code("echo $kept", language="bash").logs.stdout == ["1\n"]
        sandbox.pause()
    finally:
        assert sandbox.kill()
    assert not sandbox.kill()


def test_a_paused_sandbox_keeps_its_memory_and_files(gateway: Gateway) -> None:
    pause_and_resume(gateway)


@pytest.mark.engine
def test_a_paused_sandboxed_sandbox_keeps_its_memory_and_files() -> None:
    with gateways.gateway("docker") as gateway:
        pause_and_resume(gateway)
        assert gateway.errors() == []


@pytest.mark.engine
def test_a_paused_sandbox_stands_still_and_outlives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    with gateways.gateway("docker", state_dir=str(tmp_path), keep_sessions="true") as first:
        sandbox = Sandbox.create(timeout=300, **options(first))
        ticking = "import threading, time\nx = 0\ndef tick():\n    global x\n    while True: x += 1; time.sleep(0.1)"
        sandbox.run_code(f"{ticking}\nthreading.Thread(target=tick, daemon=True).start()")
        before = int(sandbox.run_code("x").text or "")
        sandbox.pause()
        time.sleep(12)  # longer than a pause from outside may last
    with gateways.gateway("docker", state_dir=str(tmp_path)) as second:
        own = options(second)
        until(second.ready)
        assert Sandbox.get_info(sandbox.sandbox_id, **own).state.value == "paused"
        after = int(Sandbox.connect(sandbox.sandbox_id, **own).run_code("x").text or "")
        assert before <= after < before + 100  # 12 s would be 120
        assert Sandbox.kill(sandbox.sandbox_id, **own)


@pytest.mark.engine
@pytest.mark.parametrize("golden_images", ["off", "auto"], ids=["in memory", "on disk"])
def test_a_paused_sandbox_outlives_a_gateway_that_is_killed(tmp_path: Path, golden_images: str) -> None:
    serve = partial(gateways.gateway, "docker", state_dir=str(tmp_path), golden_images=golden_images, preload="")
    with serve() as first:
        if golden_images == "auto":
            first.wait_for_sleep()
        sandbox = Sandbox.create(timeout=300, **options(first))
        sandbox.run_code("x = 1")
        sandbox.files.write("file", "text")
        shared = max(on_disks(first).values(), key=lambda used: len(on_disks(first, used)))
        assert len(on_disks(first, shared)) == 2
        sandbox.pause()
        assert len(on_disks(first, shared)) == (0 if golden_images == "auto" else 2)
        first.process.kill()
        first.process.wait()
    with serve() as second:
        own = options(second)
        assert Sandbox.get_info(sandbox.sandbox_id, **own).state.value == "paused"
        again = Sandbox.connect(sandbox.sandbox_id, timeout=300, **own)
        assert again.run_code("x").text == "1"
        assert again.files.read("file") == "text"
        assert again.kill()
        assert second.errors() == []


def on_disks(gateway: Gateway, disks: set[str] | None = None) -> dict[str, set[str]]:
    """Return the volumes of each of the gateway's containers, or only of those that use one of these volumes."""
    found = {
        container["Id"]: {mount["Name"] for mount in container["Mounts"] if "Name" in mount}
        for container in gateway.containers()
    }
    return {name: used for name, used in found.items() if disks is None or used & disks}


def told(gateway: Gateway, sandbox: Sandbox) -> dict[str, Any]:
    """Return what the gateway tells about a sandbox, also the fields that the SDK does not know."""
    answer: dict[str, Any] = control(gateway, "GET", f"/sandboxes/{sandbox.sandbox_id}").json()
    return answer


@pytest.mark.engine
@pytest.mark.gate
def test_a_paused_sandbox_costs_no_memory_and_keeps_everything() -> None:
    with gateways.gateway("docker", golden_images="auto", preload="", pool_size="0", pool_max="0") as gateway:
        gateway.wait_for_sleep()
        own = options(gateway)
        sandbox = Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": True}, **own)
        two = sandbox.create_code_context()
        sandbox.run_code("x = 1; held = open('/tmp/held', 'w+'); held.write('in a buffer')")
        sandbox.run_code("x = 2; import threading; event = threading.Event()", context=two)
        sandbox.files.write("file", "text")
        sandbox.commands.run("echo of-a-command > /tmp/of-a-command")
        shared = max(on_disks(gateway).values(), key=lambda used: len(on_disks(gateway, used)))
        assert len(on_disks(gateway, shared)) == 3  # the positive control: two contexts, and files and commands
        command = sandbox.commands.run("sleep 100", background=True)
        sandbox.pause()
        assert len(on_disks(gateway, shared)) == 1
        assert f"command {command.pid} runs" in told(gateway, sandbox)["sleepProblem"]
        assert sandbox.connect(timeout=300).commands.kill(command.pid)
        sandbox.pause()
        assert on_disks(gateway, shared) == {}
        assert "sleepProblem" not in told(gateway, sandbox)
        assert sandbox.files.read("file") == "text"  # this wakes it
        assert sandbox.run_code("held.seek(0); print(x, held.read())").logs.stdout == ["1 in a buffer\n"]
        assert sandbox.run_code("print(x, event.is_set())", context=two).logs.stdout == ["2 False\n"]
        assert sandbox.files.read("/tmp/of-a-command") == "of-a-command\n"
        assert sandbox.kill()
        assert gateway.errors() == []


def test_volumes_are_refused_with_the_reason(gateway: Gateway) -> None:
    own = options(gateway)
    with pytest.raises(VolumeException, match=r"501: .*a sandbox has its own disk only"):
        Volume.create("data", **own)
    with pytest.raises(VolumeException, match=r"501: .*a sandbox has its own disk only"):
        Volume.list(**own)
    with pytest.raises(SandboxException, match=r"501: volumeMounts: .*a sandbox has its own disk only"):
        Sandbox.create(timeout=300, volume_mounts={"/mnt/data": "data"}, **own)


def test_a_sandbox_is_paused_when_its_time_is_over_if_its_client_wants_that(gateway: Gateway) -> None:
    own = options(gateway)
    sandbox = Sandbox.create(timeout=120, lifecycle={"on_timeout": "pause"}, **own)
    sandbox.run_code("x = 1")
    sandbox.set_timeout(1)
    until(lambda: sandbox.get_info().state.value == "paused")
    assert Sandbox.connect(sandbox.sandbox_id, timeout=300, **own).run_code("x").text == "1"
    assert sandbox.kill()


def test_another_tenants_sandbox_is_not_there(gateway: Gateway, sandbox: Sandbox) -> None:
    bob = options(gateway, "bob")
    assert not Sandbox.kill(sandbox.sandbox_id, **bob)
    for attempt in (Sandbox.connect, Sandbox.get_info):
        with pytest.raises(SandboxNotFoundException):
            attempt(sandbox.sandbox_id, **bob)
    assert Sandbox.list(**bob).next_items() == []
    assert sandbox.is_running()


# -- files -----------------------------------------------------------------------------------------------------


def test_files_are_written_read_listed_moved_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    written = files.write("some where/ä b.txt", "grüße\n")
    assert (written.name, written.path) == ("ä b.txt", "/home/user/some where/ä b.txt")
    assert files.read("/home/user/some where/ä b.txt") == "grüße\n"
    several: Any = [{"path": "one", "data": "1"}, {"path": "/tmp/e2b two", "data": b"\x00\xff"}]
    assert [each.path for each in files.write_files(several)] == ["/home/user/one", "/tmp/e2b two"]
    assert files.read("/tmp/e2b two", format="bytes") == bytearray(b"\x00\xff")
    assert files.make_dir("a/b")
    assert not files.make_dir("a/b")
    assert files.rename("one", "a/new/three").path == "/home/user/a/new/three"
    info = files.get_info("a/new/three")
    assert (info.name, info.size, info.permissions, str(info.type)) == ("three", 1, "-rw-r--r--", "FileType.FILE")
    names = {entry.path for entry in files.list("a", depth=3)}
    assert names == {"/home/user/a/b", "/home/user/a/new", "/home/user/a/new/three"}
    assert files.exists("a/new/three")
    files.remove("a")
    files.remove("a")
    assert not files.exists("a/new/three")


def test_large_files_are_streamed_in_every_form(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 16 * 1024  # 4 MiB
    sandbox.files.write("form", content)
    sandbox.files.write("stream", io.BytesIO(content))
    sandbox.files.write("gzip", io.BytesIO(content), gzip=True)
    sandbox.files.write("pieces", iter([content[:1000], content[1000:]]))
    for name in ("form", "stream", "gzip", "pieces"):
        assert b"".join(sandbox.files.read(name, format="stream")) == content, name


def test_failures_of_file_calls_have_the_sdks_own_types(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("directory")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("absent")
    with pytest.raises(FileNotFoundException):
        sandbox.files.list("absent")
    with pytest.raises(InvalidArgumentException, match="directory"):
        sandbox.files.read("directory")
    for path in ("/etc/passwd", "../../etc/passwd", "/home/user/../../etc/passwd"):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.read(path)
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write(path, "x")
    with pytest.raises(InvalidArgumentException, match="only 'user'"):
        sandbox.files.read("x", user="nobody")
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("absent")
    sandbox.files.write("file", "x")
    with pytest.raises(InvalidArgumentException, match="no directory"):
        sandbox.files.watch_dir("file")


def test_a_directory_is_watched_by_asking_for_its_changes(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("place/below")
    watched = sandbox.files.watch_dir("place", recursive=True)
    sandbox.run_code("import os; open('place/below/file', 'w').write('x')")
    events = [(event.type.value, event.name) for event in watched.get_new_events()]
    assert events == [("create", "below/file"), ("write", "below/file")]
    sandbox.run_code("os.rename('place/below/file', 'place/moved'); os.chmod('place/below', 0o700)")
    events = [(event.type.value, event.name) for event in watched.get_new_events()]
    assert events == [("rename", "below/file"), ("chmod", "below"), ("create", "moved")]
    watched.stop()
    with pytest.raises(SandboxException, match="already stopped"):
        watched.get_new_events()


async def test_a_directory_is_watched_as_a_stream(gateway: Gateway) -> None:
    async with await AsyncSandbox.create(timeout=120, **options(gateway)) as sandbox:
        seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        watched = await sandbox.files.watch_dir(
            "/home/user", lambda event: seen.put_nowait((event.type.value, event.name)), on_exit=ended.set_result
        )
        await sandbox.files.write("file", "x")
        assert [await seen.get(), await seen.get()] == [("create", "file"), ("write", "file")]
        await watched.stop()
        assert await ended is None


def test_signed_urls_need_no_headers(sandbox: Sandbox) -> None:
    sent = requests.post(sandbox.upload_url("up ä"), files={"file": ("any name", b"content")}, timeout=60)
    assert sent.json() == [{"name": "up ä", "path": "/home/user/up ä", "type": "file"}]
    url = sandbox.download_url("up ä", use_signature_expiration=600)
    assert requests.get(url, timeout=60).content == b"content"
    assert requests.get(url.replace("up", "us"), timeout=60).status_code == 502
    over = sandbox.download_url("up ä", use_signature_expiration=-1)
    assert requests.get(over, timeout=60).status_code == 401


def test_a_file_larger_than_the_workspace_is_refused_and_nothing_is_left(gateway: Gateway, sandbox: Sandbox) -> None:
    bomb = gzip.compress(bytes(300 * 1024**2), 1)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983", "Content-Encoding": "gzip"}
    headers |= {"X-Access-Token": str(sandbox._envd_access_token), "Content-Type": "application/octet-stream"}
    answer = requests.post(f"{gateway.url}/files?path=bomb", data=bomb, headers=headers, timeout=120)
    assert answer.status_code == 507
    assert sandbox.files.list(".") == []
    assert sandbox.files.write("fits", "x").name == "fits"


# -- commands --------------------------------------------------------------------------------------------------


def test_commands_have_variables_a_directory_and_an_exit_code(gateway: Gateway) -> None:
    with made(gateway, envs={"A": "global"}) as sandbox:
        sandbox.files.make_dir("some where")
        seen: list[str] = []
        command = "echo $A $B; pwd; echo err >&2"
        ended = sandbox.commands.run(
            command, envs={"B": 'it\'s "own"'}, cwd="/home/user/some where", on_stdout=seen.append
        )
        assert ended.stdout.startswith('global it\'s "own"\n')
        assert ended.stdout.endswith("/some where\n")
        assert (ended.stderr, "".join(seen)) == ("err\n", ended.stdout)
        with pytest.raises(CommandExitException) as failed:
            sandbox.commands.run("echo out; exit 3")
        assert (failed.value.exit_code, failed.value.stdout) == (3, "out\n")
        with pytest.raises(NotFoundException, match="directory"):
            sandbox.commands.run("true", cwd="absent")
        for anywhere in ("/", "/etc"):
            assert sandbox.commands.run("pwd", cwd=anywhere).stdout == f"{anywhere}\n"
        with pytest.raises(InvalidArgumentException):
            sandbox.commands.run("true", cwd="/etc\n")
        with pytest.raises(InvalidArgumentException, match="LD_PRELOAD"):
            sandbox.commands.run("true", envs={"LD_PRELOAD": "x"})


def test_a_command_takes_input_until_it_is_closed(sandbox: Sandbox) -> None:
    running = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    sandbox.commands.send_stdin(running.pid, "grüße\n")
    sandbox.commands.close_stdin(running.pid)
    assert running.wait().stdout == "grüße\ndone\n"
    counting = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(counting.pid, (b"x" * 100_000 for _ in range(10)))
    sandbox.commands.close_stdin(counting.pid)
    assert counting.wait().stdout.split() == ["1000000"]
    assert sandbox.commands.run("cat").stdout == ""
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(counting.pid, "late")


def test_a_command_outlives_its_client_and_is_found_again(gateway: Gateway, sandbox: Sandbox) -> None:
    begun = sandbox.commands.run("until test -e go; do sleep 0.05; done; echo gone; exit 4", background=True)
    begun.disconnect()
    again = Sandbox.connect(sandbox.sandbox_id, **options(gateway))
    (listed,) = again.commands.list()
    assert (listed.pid, listed.cmd, listed.args[:2]) == (begun.pid, "/bin/bash", ["-l", "-c"])
    handle = again.commands.connect(begun.pid)
    again.files.write("go", "")
    with pytest.raises(CommandExitException) as ended:
        handle.wait()
    assert (ended.value.stdout, ended.value.exit_code) == ("gone\n", 4)
    until(lambda: again.commands.list() == [])


def test_commands_end_at_their_timeout_and_make_room_for_others(sandbox: Sandbox) -> None:
    for _ in range(9):
        with pytest.raises(TimeoutException):
            sandbox.commands.run("sleep 300", timeout=0.3)
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 300", background=True, timeout=0.3).wait()
    until(lambda: sandbox.commands.list() == [])
    assert sandbox.commands.run("echo done").stdout == "done\n"


def test_a_command_is_killed_once(sandbox: Sandbox) -> None:
    running = sandbox.commands.run("sleep 300", background=True)
    assert sandbox.commands.kill(running.pid)
    with pytest.raises(CommandExitException) as ended:
        running.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")
    assert not sandbox.commands.kill(running.pid)
    assert not sandbox.commands.kill(1)


def test_a_terminal_has_a_size_that_changes(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=20, cols=50), timeout=60)
    shown: list[bytes] = []

    def on_pty(data: bytes) -> None:
        shown.append(data)
        if b"20 50" in data:
            sandbox.pty.resize(terminal.pid, PtySize(rows=21, cols=51))
            sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 0\n")

    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    assert terminal.wait(on_pty=on_pty).exit_code == 0
    assert b"21 51" in b"".join(shown)


def test_a_sandbox_that_is_killed_ends_the_commands_of_its_clients(sandbox: Sandbox) -> None:
    running = sandbox.commands.run("sleep 300", background=True)
    sandbox.kill()
    with pytest.raises(SandboxException, match="killed or reached its end"):
        running.wait()


async def test_a_sandbox_that_is_killed_ends_the_commands_of_its_asynchronous_clients(gateway: Gateway) -> None:
    sandbox = await AsyncSandbox.create(timeout=300, **options(gateway))
    running = await sandbox.commands.run("sleep 300", background=True)
    await sandbox.kill()
    with pytest.raises(TimeoutException, match="killed or reached its end"):
        await running.wait()
