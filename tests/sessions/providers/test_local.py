"""Processes of this machine: the contract, the protections, and their limits."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from sessions.model.errors import InvalidRequest
from sessions.providers import children
from sessions.providers.children import MARK
from sessions.providers.local import Local
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import Case, instance, run, value
from tests.tiers import some


async def left() -> int:
    return sum(entry.name.startswith("kernel-gateway-local-") for entry in os.scandir(tempfile.gettempdir()))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "scripts").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Case(
        Local,
        {
            "timeout": 60,
            "max_output": 100_000,
            "allowed_commands": "python,deno,node,sh",
            "allowed_paths": str(tmp_path / "scripts"),
        },
        left=left,
        artifacts=True,
        invalid={
            "allowed_commands: there is no 'perl'": {"allowed_commands": "python,perl"},
            "allowed_commands: it is required": {"allowed_commands": ""},
            "allowed_paths: 'relative' is no directory": {"allowed_paths": "relative"},
            "allowed_paths: '/no/such' is no directory": {"allowed_paths": "/no/such"},
            "timeout: it must be at most 300": {"timeout": 301},
        },
    )


def alive(text: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (
                (process / "cmdline").read_bytes(),
                (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0],
            )
        except OSError:
            continue
        if text.encode() in command and state != "Z":
            found.append(int(process.name))
    return found


async def test_it_is_no_sandbox_and_says_so(provider: Local) -> None:
    assert provider.sandboxed is False
    assert value(await run(provider, "import os\ndef main(): return os.getppid()")) == os.getpid()


async def test_only_allowed_interpreters_run(case: Case) -> None:
    provider = Local()
    await provider.initialize(case.config | {"allowed_commands": "sh"})
    assert provider.get_supported_languages() == ["shell", "script"]
    with pytest.raises(InvalidRequest):
        await run(provider, "def main(): pass")
    assert (await run(provider, "echo $((6 * 7))", "shell")).stdout == "42\n"
    await provider.close()


async def test_the_environment_is_made_anew(provider: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "NODE_OPTIONS",
        "BASH_ENV",
        "ENV",
        "SHELL",
        "AWS_SECRET_KEY",
    ]
    for name in dropped:
        monkeypatch.setenv(name, "/no/such/thing")
    env = value(await run(provider, "import os\ndef main(): return dict(os.environ)"))
    assert set(env) - {"LC_CTYPE"} == {"PATH", "HOME", "TMPDIR", "LANG", "NO_COLOR", MARK}
    assert "/no/such/thing" not in env.values()


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(command)",
        "subprocess.Popen(command, process_group=0)",
        "subprocess.Popen(command, start_new_session=True)",
        "subprocess.Popen(['sh', '-c', 'setsid ' + ' '.join(command) + ' & exit'])",
        "subprocess.Popen(command, env={}, cwd='/')",
    ],
    ids=["child", "group", "session", "double fork", "no environment"],
)
@pytest.mark.parametrize("late", some([False, True], gate=1))
async def test_child_processes_end_with_their_program(provider: Local, start: str, *, late: bool) -> None:
    seconds = f"{os.getpid()}{int(time.monotonic() * 1000) % 10**6}"
    code = f"""
import subprocess, time, pathlib
def main():
    command = ["sleep", "{seconds}"]
    {start}
    time.sleep(0.5)
    seen = b"{seconds}" in subprocess.run(["ps", "ax"], capture_output=True).stdout
    time.sleep({60 if late else 0})
    return seen
"""
    result = await run(provider, code, seconds=2 if late else 30)
    if late:
        assert result.metadata["error_code"] == "SB005"
    else:
        assert value(result) is True  # the child process was running
    assert alive(seconds) == []


async def test_a_hidden_process_is_neither_found_nor_waited_for(provider: Local) -> None:
    seconds = f"{os.getpid()}{int(time.monotonic() * 1000) % 10**6}"
    code = f"import subprocess\ndef main(): subprocess.Popen(['sleep', '{seconds}'], env={{}}, start_new_session=True)"
    assert value(await run(provider, code)) is None
    (hidden,) = alive(seconds)  # the documented limit of `children.kill`
    os.kill(hidden, 9)


async def test_kill_ends_only_processes_of_its_mark_or_session(monkeypatch: pytest.MonkeyPatch) -> None:
    somebody, nobody = uuid.uuid4().hex, uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec("sleep", "60", env={MARK: somebody}, start_new_session=True)
    ended: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, _signal: ended.append(pid))
        children.kill(nobody)
        assert ended == []
        children.kill(somebody)
        children.kill(nobody, process.pid)
    assert set(ended) == {process.pid}
    process.kill()
    await process.wait()


async def test_output_is_bounded_and_the_result_is_not_lost(provider: Local) -> None:
    result = await run(provider, "def main():\n    print('x' * 300_000)\n    return 'here'")
    assert (value(result), len(result.stdout), result.metadata["truncated"]) == ("here", 100_000, True)
    result = await run(provider, "def main(): return 'x' * 300_000")
    assert (result.exit_code, result.metadata["error_code"]) == (1, "SB010")
    assert value(await run(provider, "def main(): return 'x' * 30_000")) == "x" * 30_000


@pytest.mark.parametrize(
    ("code", "exit_code"), [("import os; os._exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
async def test_a_program_may_end_itself_as_it_likes(provider: Local, code: str, exit_code: int) -> None:
    result = await run(provider, code)
    assert (result.exit_code, result.metadata["status"], result.metadata["result_present"]) == (
        exit_code,
        "error",
        False,
    )


async def test_programs_of_an_instance_have_directories_of_their_own(provider: Local) -> None:
    code = (
        "import os, pathlib\ndef main():\n    pathlib.Path('a').touch()\n    return [os.getcwd(), sorted(os.listdir())]"
    )
    async with instance(provider) as made:
        one, two = [value(await provider.execute_code(made, code, "python")) for _ in range(2)]
    assert one[0] != two[0]
    assert one[1] == two[1] == ["a", "artifacts"]
    assert not os.access(one[0], os.F_OK)


async def test_links_are_not_followed_for_artifacts(provider: Local, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("secret")
    code = f"""
import os, shutil
def main(how):
    open("artifacts/mine.csv", "w").write("mine")
    if how == "file":
        os.symlink("{tmp_path}/secret.csv", "artifacts/a.csv")
        os.mkfifo("artifacts/b.csv")
    if how == "directory":
        shutil.rmtree("artifacts")
        os.symlink("{tmp_path}", "artifacts")
"""
    assert [each["name"] for each in (await run(provider, code, how="file")).metadata["artifacts"]] == ["mine.csv"]
    assert (await run(provider, code, how="directory")).metadata["artifacts"] == []


@pytest.fixture
def scripts(case: Case, tmp_path: Path) -> Path:
    (tmp_path / "scripts-not").mkdir()
    for place in ("scripts", "scripts-not"):
        (tmp_path / place / "hello.py").write_text("def main(name): return 'hello ' + name")
    (tmp_path / "scripts" / "link.py").symlink_to(tmp_path / "scripts-not" / "hello.py")
    (tmp_path / "scripts" / "away").symlink_to(tmp_path / "scripts-not")
    (tmp_path / "back.py").symlink_to(tmp_path / "scripts" / "hello.py")
    (tmp_path / "scripts" / "hello.rb").write_text("puts 1")
    return tmp_path


@pytest.mark.parametrize("path", ["scripts/hello.py", "scripts-not/../scripts/hello.py", "back.py"])
async def test_scripts_run_that_lie_in_an_allowed_directory(provider: Local, scripts: Path, path: str) -> None:
    assert value(await run(provider, f"{scripts}/{path}", "script", name="you")) == "hello you"


@pytest.mark.parametrize(
    "path",
    [
        *("scripts-not/hello.py", "scripts/../scripts-not/hello.py", "scripts/link.py", "scripts/away/hello.py"),
        *("scripts/none.py", "scripts", "scripts/hello.rb", "scripts/hello.py\0"),
    ],
)
async def test_missing_unknown_and_not_allowed_scripts_are_refused(provider: Local, scripts: Path, path: str) -> None:
    with pytest.raises(InvalidRequest):
        await run(provider, f"{scripts}/{path}", "script", name="you")


async def test_a_relative_script_path_is_refused(
    provider: Local, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scripts)
    with pytest.raises(InvalidRequest, match="absolute"):
        await run(provider, "scripts/hello.py", "script", name="you")


async def test_shell_scripts_have_no_main(provider: Local) -> None:
    result = await run(provider, "echo out; echo err >&2; exit 3", "shell")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    with pytest.raises(InvalidRequest, match="takes no arguments"):
        await run(provider, "true", "shell", name="you")


async def test_a_cancelled_run_leaves_no_process(provider: Local) -> None:
    seconds = f"{os.getpid()}{int(time.monotonic() * 1000) % 10**6}"
    async with instance(provider, "shell") as made:
        waiting = asyncio.ensure_future(provider.execute_code(made, f"sleep {seconds}", "shell"))  # noqa: TID251
        async with asyncio.timeout(60):
            while not alive(seconds):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert alive(seconds) == []
