"""The contract of backends: one suite that runs over every backend.

To run it over a new backend, add one line to `BACKENDS`.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import orjson
import pytest

from kernel_image import protocol
from sessions.backends.base import Backend, KernelHandle, Launch, Sharing
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.isolation.isolation import prove_isolation
from sessions.backends.docker.isolation.proof import Proven
from sessions.backends.docker.profile import INSTANCE_LABEL, GoldenSettings, SleepSettings
from sessions.backends.kubernetes import KubernetesBackend, KubernetesSettings, walls
from sessions.backends.process import ProcessBackend
from sessions.guest.tools import open_end
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.checkpoint import SleepFailed
from sessions.model.errors import ConnectionFailed, SessionClosed
from sessions.model.kernelspecs import NO_KERNEL
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit
from tests.attacks.bench import forget_network
from tests.cluster.access import CONTROL, KUBECONFIG
from tests.fakes import KERNELSPECS, FakeBackend, Listener, connect, until

#: id of the installation that only this run uses
INSTANCE = f"contract-{os.getpid()}"
NETWORK = f"kernel-gateway-{INSTANCE}"
WORKSPACE = f"ws-{os.getpid()}"
GOLDEN_IMAGES = Path(tempfile.gettempdir()) / INSTANCE


def docker_backend() -> DockerBackend:
    return DockerBackend(DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, INSTANCE))


def restoring_backend() -> DockerBackend:
    """A Docker backend whose kernels are restored from a golden image, which all of these share."""
    mine = GoldenSettings(GOLDEN_IMAGES, 1024 * MIB, LAUNCH.limits, (LAUNCH.kernelspec,))
    sleep = SleepSettings(GOLDEN_IMAGES.with_suffix(".asleep"), lambda: bytes(32))
    return DockerBackend(replace(docker_backend().settings, golden=mine, sleep=sleep))


def kubernetes_backend() -> KubernetesBackend:
    """A backend in the cluster of `make test-cluster`."""
    return KubernetesBackend(
        KubernetesSettings(
            "kernel-gateway/python:slim", INSTANCE, kubeconfig=KUBECONFIG, pull_policy="Never", gateway=(CONTROL,)
        )
    )


#: every backend; a mark names what only some machines have
BACKENDS: list[Any] = [
    pytest.param(FakeBackend, id="fake"),
    pytest.param(ProcessBackend, id="process"),
    pytest.param(kubernetes_backend, id="kubernetes", marks=[pytest.mark.cluster, pytest.mark.full]),
    pytest.param(docker_backend, id="docker", marks=pytest.mark.engine),
    # the same backend in the gate would only repeat what the line above shows
    pytest.param(restoring_backend, id="restored", marks=[pytest.mark.engine, pytest.mark.full]),
]

#: backends that do not measure their kernels
UNMEASURED = {"process", "kubernetes"}
LAUNCH = Launch(KERNELSPECS.find("python"), env={"GREETING": "hello"})
MIB = 1024**2
#: seconds until the end of a kernel is noticed
NOTICED = 60.0
#: variable in the environment of the gateway's process that no kernel may have
CANARY = "KERNEL_GATEWAY_TEST_CANARY"
#: variables that a kernel's environment may have besides the requested ones
ALLOWED = {
    *("HOME", "LANG", "PATH", "TERM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    # set by the interpreter or by IPython for its own cells
    *("LC_CTYPE", "PYDEVD_USE_FRAME_EVAL", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "PAGER", "GIT_PAGER"),
    *("MPLBACKEND", "PYTHONUNBUFFERED"),
    *protocol.SANDBOX_VARIABLES,
}


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """The kernels' network; it and the workspaces, which a closed backend leaves to the next one, are removed."""
    yield NETWORK
    with closing(docker.from_env()) as client:
        for volume in client.volumes.list(filters={"label": f"{INSTANCE_LABEL}={INSTANCE}"}):
            volume.remove()
    forget_network(NETWORK)
    shutil.rmtree(GOLDEN_IMAGES, ignore_errors=True)
    shutil.rmtree(GOLDEN_IMAGES.with_suffix(".asleep"), ignore_errors=True)


@pytest.fixture(scope="module")
def proven_once() -> Iterator[None]:
    """The proof of the first Docker backend holds for all, because they use one network."""
    proofs: list[Proven] = []

    def prove(*asked: Any) -> Proven:
        proofs.extend([] if proofs else [prove_isolation(*asked)])
        return proofs[0]

    in_clusters: list[walls.Proven] = []

    async def prove_cluster(*asked: Any) -> walls.Proven:
        in_clusters.extend([] if in_clusters else [await walls.prove(*asked)])
        return in_clusters[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sessions.backends.docker.prove_isolation", prove)
        patched.setattr("sessions.backends.kubernetes.prove", prove_cluster)
        yield


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, nothing_left: None, proven_once: None) -> AsyncIterator[Backend]:
    make: Callable[[], Backend] = request.param
    backend = make()
    if backend.name == "kubernetes" and request.node.originalname == "test_two_kernels_may_share_a_workspace":
        why = "a kernel that does not say that it shares its workspace gets a copy"
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    if isinstance(backend, DockerBackend):
        request.getfixturevalue("network")
    await backend.prepare()
    if isinstance(backend, DockerBackend) and backend.settings.golden is not None:
        await backend.adopt({}, ())
        await until(lambda: backend.golden_images.on, NOTICED)
        await backend.settled()  # the proof of sleep comes after the first golden image
    yield backend
    await backend.close()


@pytest.fixture
async def kernel(backend: Backend) -> AsyncIterator[Kernel]:
    kernel = await Kernel.start(backend, LAUNCH)
    yield kernel
    await kernel.kill(SessionClosed())


@pytest.fixture
async def handle(backend: Backend) -> AsyncIterator[KernelHandle]:
    """A kernel that may not have answered yet: tools run beside it."""
    handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    yield handle
    await handle.kill()
    await backend.delete_workspace(WORKSPACE)


async def execute(kernel: Kernel, code: str, begun: asyncio.Event | None = None) -> tuple[str, str]:
    """Run a cell.

    Args:
        kernel: kernel that runs the cell.
        code: code of the cell.
        begun: set when the kernel reports that the cell has begun.

    Returns:
        status of the reply or name of the error, and the printed text.
    """
    seen: list[Message] = []
    news = asyncio.Event()

    def note(message: Message) -> None:
        seen.append(message)
        news.set()
        if begun is not None and message.type == "execute_input":
            begun.set()

    kernel.attach(Listener(note))
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    msg_id = kernel.connection.send("shell", "execute_request", content)
    async with asyncio.timeout(60):
        while not (outcome := _outcome([message for message in seen if message.parent_id == msg_id])):
            news.clear()
            await news.wait()
    return outcome


def _outcome(seen: list[Message]) -> tuple[str, str] | None:
    replies = [message.content for message in seen if message.type == "execute_reply"]
    if not replies or not any(message.content.get("execution_state") == "idle" for message in seen):
        return None
    printed = "".join(message.content["text"] for message in seen if message.type == "stream")
    return str(replies[0].get("ename", replies[0]["status"])), printed


async def tool(
    handle: KernelHandle, op: str, path: str, content: bytes | None = None, size: int = -1, **more: Any
) -> bytes:
    """Return the whole output of the files tool."""

    async def stdin() -> AsyncIterator[bytes]:
        yield content or b""

    request = {"op": op, "path": path, "size": size if size >= 0 else len(content or b""), **more}
    output = handle.run_tool("files", orjson.dumps(request).decode(), stdin() if content is not None else None)
    async with aclosing(output):
        return b"".join([piece async for piece in output])


async def answer(handle: KernelHandle, op: str, path: str, **more: Any) -> dict[str, Any]:
    """Return the answer of the files tool, which must be its whole output."""
    parsed: dict[str, Any] = orjson.loads(await tool(handle, op, path, **more))
    return parsed


# -- a kernel's life -------------------------------------------------------------------------------------------


@pytest.mark.gate
async def test_a_kernel_answers_and_keeps_its_variables(kernel: Kernel) -> None:
    assert await execute(kernel, "x = 41") == ("ok", "")
    assert await execute(kernel, "print(x + 1)") == ("ok", "42\n")
    assert await execute(kernel, "1 / 0") == ("ZeroDivisionError", "")
    assert await execute(kernel, "print(x)") == ("ok", "41\n")


@pytest.mark.gate
async def test_an_interrupt_stops_the_cell_and_nothing_else(kernel: Kernel) -> None:
    await execute(kernel, "x = 1")
    await kernel.handle.interrupt()  # no effect on an idle kernel
    assert await execute(kernel, "print(x)") == ("ok", "1\n")
    begun = asyncio.Event()
    cell = spawn(execute(kernel, "import time; time.sleep(60)", begun), "cell")
    await begun.wait()
    await kernel.handle.interrupt()
    assert (await cell)[0] == "KeyboardInterrupt"
    assert await execute(kernel, "print(x)") == ("ok", "1\n")


async def test_killing_a_kernel_is_final_and_idempotent(kernel: Kernel) -> None:
    waiting = spawn(kernel.handle.wait(), "waits")
    await asyncio.gather(kernel.handle.kill(), kernel.handle.kill())
    await kernel.handle.kill()
    assert (await waiting).reason is ExitReason.KILLED
    assert (await kernel.handle.wait()).reason is ExitReason.KILLED
    await kernel.handle.interrupt()
    kernel.handle.make_responsive()


@pytest.mark.gate
async def test_a_kernel_that_ends_on_its_own_is_noticed(kernel: Kernel) -> None:
    kernel.connection.send("shell", "execute_request", {"code": "import os; os._exit(3)", "silent": False})
    async with asyncio.timeout(NOTICED):
        assert await kernel.handle.wait() == KernelExit(ExitReason.EXITED, 3)
    await kernel.handle.kill()
    assert await kernel.handle.wait() == KernelExit(ExitReason.EXITED, 3)


async def test_a_kernels_memory_is_reported_while_it_runs_except_for_plain_processes(
    backend: Backend, kernel: Kernel
) -> None:
    before = kernel.handle.memory()
    assert (before is None) == (backend.name in UNMEASURED)
    if backend.name == "docker":
        assert (await execute(kernel, f"kept = b'x' * {64 * MIB}"))[0] == "ok"
        after = kernel.handle.memory()
        assert before is not None
        assert after is not None
        assert before + 48 * MIB < after <= LAUNCH.limits.memory
    await kernel.kill(SessionClosed())
    assert kernel.handle.memory() is None


async def test_a_kernels_processor_time_is_reported_while_it_runs_except_for_plain_processes(
    backend: Backend, kernel: Kernel
) -> None:
    before = kernel.handle.processor_seconds()
    assert (before is None) == (backend.name in UNMEASURED)
    if backend.name == "docker":
        assert before is not None
        assert (await execute(kernel, "sum(range(10**6))"))[0] == "ok"
        after = kernel.handle.processor_seconds()
        assert after is not None
        assert after > before
    await kernel.kill(SessionClosed())
    assert kernel.handle.processor_seconds() is None


@pytest.mark.gate
async def test_two_kernels_have_nothing_in_common(backend: Backend, kernel: Kernel) -> None:
    other = await Kernel.start(backend, LAUNCH)
    await execute(kernel, "x = 1")
    assert (await execute(other, "print(x)"))[0] == "NameError"
    await tool(kernel.handle, "write", "a", content=b"mine")
    assert (await answer(other.handle, "read", "a"))["error"] == "absent"
    one, two = kernel.handle.connection_info, other.handle.connection_info
    assert kernel.handle.id != other.handle.id
    assert len({one.key, two.key, one.curve_secretkey, two.curve_secretkey}) == 4
    await other.kill(SessionClosed())
    assert await execute(kernel, "print(x)") == ("ok", "1\n")


@pytest.mark.gate
async def test_closing_a_backend_kills_all_its_kernels(backend: Backend) -> None:
    kernels = await asyncio.gather(*(Kernel.start(backend, LAUNCH) for _ in range(2)))
    await backend.close()
    assert {(await kernel.handle.wait()).reason for kernel in kernels} == {ExitReason.KILLED}


@pytest.mark.parametrize("kind", [ProcessBackend, DockerBackend, FakeBackend])
def test_whoever_adopts_kernels_says_which_workspaces_stay(kind: type[Backend]) -> None:
    """The files of all others are deleted, so that leaving the workspaces out must be an error."""
    inspect.signature(kind.adopt).bind(None, {}, ())
    with pytest.raises(TypeError, match="workspaces"):
        inspect.signature(kind.adopt).bind(None, {})


async def test_a_backend_says_whether_it_restores_kernels_and_only_then_does(backend: Backend) -> None:
    outcomes: list[bool] = []
    backend.report_restores(outcomes.append)
    kernel = await Kernel.start(backend, LAUNCH)
    assert outcomes == [True] * backend.golden_images.on
    assert backend.golden_images.detail
    await kernel.kill(SessionClosed())


async def test_a_backend_says_whether_kernels_can_sleep_and_only_then_they_do(backend: Backend) -> None:
    kernel = await Kernel.start(backend, LAUNCH)
    await execute(kernel, "x = 41")
    assert backend.sleep.ability.detail
    kernel.connection.suspend()
    if not backend.sleep.ability.on:
        with pytest.raises(SleepFailed):
            await backend.sleep.take(kernel.handle, kernel.launch)
        kernel.connection.open()
    else:
        image, info = await backend.sleep.take(kernel.handle, kernel.launch), kernel.handle.connection_info
        await kernel.kill(SessionClosed())
        kernel = await Kernel.take_over(kernel.launch, await backend.sleep.wake(image, kernel.launch, info))
        await backend.sleep.discard(image)
        await backend.sleep.discard(image)
    await kernel.first_answer()
    assert await execute(kernel, "print(x + 1)") == ("ok", "42\n")
    await kernel.kill(SessionClosed())


async def test_a_backend_says_whether_kernels_can_sleep_and_only_then_they_are_copied(backend: Backend) -> None:
    kernel = await Kernel.start(backend, LAUNCH)
    await execute(kernel, "import pathlib; x = 41; pathlib.Path('file').write_text('kept')")
    kernel.connection.suspend()
    going_on = asyncio.Event()
    if not backend.sleep.ability.on:
        with pytest.raises(SleepFailed):
            await backend.sleep.copy(kernel.handle, kernel.launch, going_on.set)
        others = []
    else:
        image = await backend.sleep.copy(kernel.handle, kernel.launch, going_on.set)
        await asyncio.wait_for(going_on.wait(), 1)
        info = kernel.handle.connection_info
        named = replace(kernel.launch, workspace=uuid.uuid4().hex)
        others = [await Kernel.take_over(named, await backend.sleep.restore(image, named, info))]
        await backend.sleep.discard(image)
    kernel.connection.open()
    for each in (kernel, *others):
        await each.first_answer()
        assert await execute(each, "print(x + 1, pathlib.Path('file').read_text())") == ("ok", "42 kept\n")
        await execute(each, "x = 0; pathlib.Path('file').unlink()")
    for each in others:
        await each.kill(SessionClosed())
        await backend.delete_workspace(str(each.launch.workspace))
    await kernel.kill(SessionClosed())


async def test_a_backend_says_whether_kernels_can_sleep_and_only_then_they_are_copied_together(
    backend: Backend,
) -> None:
    shared = replace(LAUNCH, workspace=uuid.uuid4().hex, shared=True)
    kernels = [await Kernel.start(backend, shared) for _ in range(2)]
    for number, kernel in enumerate(kernels):
        await execute(kernel, f"import pathlib; x = {number}; pathlib.Path('file{number}').write_text('kept')")
        kernel.connection.suspend()
    going_on = asyncio.Event()
    sharing = Sharing(shared, [(kernels[0].handle, shared)], [kernels[1].handle])
    others = []
    if not backend.sleep.ability.on:
        with pytest.raises(SleepFailed):
            await backend.sleep.copy_together(sharing, going_on.set)
    else:
        image, files = await backend.sleep.copy_together(sharing, going_on.set)
        await asyncio.wait_for(going_on.wait(), 1)
        named, info = replace(shared, workspace=uuid.uuid4().hex), kernels[0].handle.connection_info
        await backend.sleep.unpack(files, named)
        others = [await Kernel.take_over(named, await backend.sleep.wake(image, named, info))]
        for written in (image, files):
            await backend.sleep.discard(written)
    for number, kernel in enumerate(kernels):
        kernel.connection.open()
        await kernel.first_answer()
        assert await execute(kernel, f"print(x, pathlib.Path('file{number}').exists())") == ("ok", f"{number} True\n")
        await execute(kernel, f"x = 5; pathlib.Path('file{number}').unlink()")
    for other in others:
        await other.first_answer()
        files_of_both = "[pathlib.Path(name).read_text() for name in ('file0', 'file1')]"
        assert await execute(other, f"print(x, {files_of_both})") == ("ok", "0 ['kept', 'kept']\n")
    for each in (*kernels, *others):
        await each.kill(SessionClosed())
    for workspace in {str(each.launch.workspace) for each in (*kernels, *others)}:
        await backend.delete_workspace(workspace)


# -- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.gate
async def test_a_kernel_sees_its_own_environment_and_not_the_gateways(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CANARY, "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    kernel = await Kernel.start(backend, LAUNCH)
    _, printed = await execute(kernel, "import json, os; print(json.dumps(dict(os.environ)))")
    env = json.loads(printed)
    assert env["GREETING"] == "hello"
    assert set(env) - ALLOWED == {"GREETING"}
    assert "secret" not in printed
    await kernel.kill(SessionClosed())


async def test_representations_of_a_handle_contain_no_secret(handle: KernelHandle) -> None:
    info = handle.connection_info
    secrets = [secret.decode() for secret in (info.key, info.curve_secretkey, info.curve_publickey) if secret]
    assert len(secrets) == 3
    shown = f"{info!r} {info} {handle!r} {vars(handle)!r}"
    assert not [secret for secret in secrets if secret in shown]


@pytest.mark.gate
async def test_a_kernel_sends_nothing_to_an_unencrypted_client(kernel: Kernel) -> None:
    plain = replace(kernel.handle.connection_info, curve_publickey=None)
    heard = Listener()
    eavesdropper = connect(plain, heard, most=10_000)
    assert await execute(kernel, "print('secret')") == ("ok", "secret\n")
    await asyncio.sleep(0.05)
    assert heard.messages == []
    eavesdropper.close()


# -- a warm kernel ---------------------------------------------------------------------------------------------

#: code that prints the place and environment of its kernel
LOOK = """
import json, os, subprocess, sys, tempfile, time
from pathlib import Path
Path("made_here.py").write_text("answer = 42")
import made_here
def told(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout
print(json.dumps({
    "env": dict(os.environ),
    "child": json.loads(told(sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")),
    "shell": told("pwd; printf %s \\"$GREETING\\"", shell=True),
    "cwd": os.getcwd(), "path": sys.path, "home": str(Path.home()), "tmp": tempfile.gettempdir(),
    "zone": time.strftime("%z", time.localtime(0)), "umask": os.umask(0o077), "mode": Path.cwd().stat().st_mode,
    "dirs": list(map(str, _dh)), "started in": get_ipython().starting_dir,
    "made here": made_here.answer, "names": sorted(globals()), "In": In, "Out": Out,
    "count": get_ipython().execution_count,
}))
"""
WISHES = [
    {"env": {"GREETING": 'it\'s "quoted"\n{json} %s $(id) \\\\ ☃', "EMPTY": "", "TZ": "XST-9"}, "cwd": "data/deep"},
    {"env": {"OMP_NUM_THREADS": "3"}},
    {"session": "s.1"},
    {"cwd": "/tmp/where/it/is"},
    {"cwd": "/etc/passwd/no-directory"},
]


async def look(kernel: Kernel) -> dict[str, Any]:
    """Return what a cell sees, with fixed names for the kernel's own paths."""
    status, printed = await execute(kernel, LOOK)
    assert status == "ok"
    seen: dict[str, Any] = json.loads(
        printed.replace(kernel.handle.id, "HOME").replace(str(kernel.launch.workspace), "WORKSPACE")
    )
    return seen


@pytest.mark.parametrize("backend", BACKENDS[1:], indirect=True)
@pytest.mark.parametrize("wishes", WISHES)
async def test_a_leased_warm_kernel_equals_a_kernel_started_for_its_session(
    backend: Backend, wishes: dict[str, Any]
) -> None:
    plain = Launch(LAUNCH.kernelspec)
    wanted = replace(plain, **wishes)
    waited = await Kernel.start(backend, plain)
    assert await waited.lease(wanted)
    started = await Kernel.start(backend, wanted)
    seen, expected = await look(waited), await look(started)
    assert seen == expected
    # Both kernels are correct, and not only equal.
    assert seen["In"] == ["", LOOK.strip()]
    for name, value in wanted.variables.items():
        assert (seen["env"][name], seen["child"][name]) == (value, value)
    assert seen["zone"] == ("+0900" if "TZ" in wanted.env else "+0000")
    assert seen["cwd"].endswith(wanted.cwd) or wanted.cwd.startswith("/etc")
    await waited.kill(SessionClosed())
    await started.kill(SessionClosed())


#: code that prints the name of the kernel's session, by language
SESSION_OF = {
    "python": "import os; print(os.environ['KERNEL_GATEWAY_SESSION'])",
    "bash": "echo $KERNEL_GATEWAY_SESSION",
    "javascript": "console.log(Deno.env.get('KERNEL_GATEWAY_SESSION'))",
}

#: code that prints the loaded modules without a compiled file in the image
UNCOMPILED = """
import os, sys
specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
cached = {name: spec.cached for name, spec in specs.items() if spec and spec.cached}
print([name for name, path in cached.items() if not os.path.exists(path)], len(cached) > 300)
"""


@pytest.mark.parametrize("backend", BACKENDS[2:], indirect=True)
async def test_all_modules_that_a_kernel_loads_in_a_container_are_compiled(backend: Backend) -> None:
    kernel = await Kernel.start(backend, LAUNCH)
    assert await execute(kernel, UNCOMPILED) == ("ok", "[] True\n")
    await kernel.kill(SessionClosed())


@pytest.mark.parametrize("backend", BACKENDS[1:], indirect=True)
@pytest.mark.parametrize("language", SESSION_OF)  # those of the usual image
async def test_a_kernel_of_any_language_can_be_leased_and_renamed_until_it_is_killed(
    backend: Backend, language: str
) -> None:
    launch = Launch(KERNELSPECS.find(language), session="s.1")
    kernel = await Kernel.start(backend, replace(launch, session=""))
    assert await kernel.lease(launch)
    assert await execute(kernel, SESSION_OF[language]) == ("ok", "s.1\n")
    kernel.launch = replace(kernel.launch, session="branch")
    await kernel.rename()
    assert await execute(kernel, SESSION_OF[language]) == ("ok", "branch\n")
    await kernel.kill(SessionClosed())
    assert not await kernel.lease(launch)


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.gate
async def test_files_are_written_read_listed_and_deleted(handle: KernelHandle) -> None:
    everything = bytes(range(256)) * 4000
    assert await answer(handle, "write", "dir/a.bin", content=everything) == {"size": len(everything)}
    line, _, content = (await tool(handle, "read", "dir/a.bin")).partition(b"\n")
    assert (orjson.loads(line)["size"], content) == (len(everything), everything)
    assert (await answer(handle, "move", "dir/a.bin", to="b.bin", replace=False))["entry"]["size"] == len(everything)
    assert (await answer(handle, "mkdir", "dir", mode=0o755, parents=True))["entry"]["type"] == "directory"
    assert (await answer(handle, "move", "b.bin", to="dir", replace=False))["error"] == "exists"
    assert (await answer(handle, "move", "b.bin", to="dir/a.bin", replace=False))["entry"]["path"] == "dir/a.bin"
    part = await tool(handle, "read", "dir/a.bin", part=(len(everything) - 2, None), tag=None)
    assert part.endswith(b"\n" + everything[-2:])
    (entry,) = (await answer(handle, "list", "dir"))["entries"]
    assert (entry["name"], entry["type"], entry["size"]) == ("a.bin", "file", len(everything))
    assert await answer(handle, "delete", "dir") == {}
    assert (await answer(handle, "list", ""))["entries"] == []


@pytest.mark.gate
async def test_cells_and_tools_see_the_same_files(kernel: Kernel) -> None:
    await tool(kernel.handle, "write", "a", content=b"from outside")
    code = "from pathlib import Path; Path('b').write_text('from inside'); print(Path('a').read_text())"
    assert await execute(kernel, code) == ("ok", "from outside\n")
    assert (await tool(kernel.handle, "read", "b")).endswith(b"from inside")


async def test_special_files_and_links_made_by_a_cell_cause_only_error_answers(kernel: Kernel) -> None:
    trap = "import os; os.mkfifo('fifo'); os.symlink('/etc/passwd', 'out'); os.symlink('/etc', 'etc'); os.mkdir('dir')"
    assert (await execute(kernel, trap))[0] == "ok"
    handle = kernel.handle
    async with asyncio.timeout(60):
        answers = {
            path: (await answer(handle, "read", path))["error"]
            for path in ("fifo", "out", "etc/passwd", "dir", "none", "../..", "/etc/passwd")
        }
    assert answers == {
        "fifo": "special",
        "out": "outside",
        "etc/passwd": "outside",
        "dir": "directory",
        "none": "absent",
        "../..": "outside",
        "/etc/passwd": "outside",
    }
    assert (await answer(handle, "write", "out", content=b"x"))["error"] == "outside"
    assert (await answer(handle, "write", "etc/x", content=b"x"))["error"] == "outside"
    assert (await answer(handle, "write", "dir", content=b"x"))["error"] == "directory"
    kinds = {entry["name"]: entry["type"] for entry in (await answer(handle, "list", ""))["entries"]}
    assert kinds == {"fifo": "special", "out": "link", "etc": "link", "dir": "directory"}


async def test_an_upload_that_breaks_off_leaves_the_old_file(handle: KernelHandle) -> None:
    await tool(handle, "write", "a", content=b"old")
    assert (await answer(handle, "write", "a", content=b"new", size=1000))["error"] == "incomplete"
    assert (await tool(handle, "read", "a")).endswith(b"old")
    assert len((await answer(handle, "list", ""))["entries"]) == 1


async def test_leaving_an_upload_ends_it_and_keeps_no_file(handle: KernelHandle) -> None:
    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    output = handle.run_tool("files", '{"op": "write", "path": "a", "size": 1}', never())
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):  # time for the tool to begin
                await anext(output)
        await output.aclose()
    assert (await answer(handle, "list", ""))["entries"] == []


async def test_leaving_a_download_ends_it(handle: KernelHandle) -> None:
    await tool(handle, "write", "a", content=b"x" * 5_000_000)
    output = handle.run_tool("files", '{"op": "read", "path": "a"}')
    async with asyncio.timeout(60):
        assert await anext(output)
        await output.aclose()
    assert (await answer(handle, "list", ""))["entries"][0]["size"] == 5_000_000


async def test_leaving_a_file_operation_does_not_keep_a_kernel_from_ending(backend: Backend) -> None:
    for pause in (0.0, 0.05, 0.2):  # while the operation begins, and while it runs
        handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
        await tool(handle, "write", "a", content=b"x" * 5_000_000)
        reading = [spawn(tool(handle, "read", "a"), "download") for _ in range(3)]
        await asyncio.sleep(pause)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        async with asyncio.timeout(NOTICED):
            await handle.kill()
        await backend.delete_workspace(WORKSPACE)
    handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    assert (await answer(handle, "list", ""))["entries"] == []
    await handle.kill()


@pytest.mark.gate
async def test_a_download_that_nobody_reads_does_not_keep_a_kernel_from_ending(backend: Backend) -> None:
    handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    await tool(handle, "write", "a", content=b"x" * 20_000_000)
    downloads = [handle.run_tool("files", orjson.dumps({"op": "read", "path": "a"}).decode()) for _ in range(3)]
    for download in downloads:
        assert await anext(download), "begun, and not read any more"
    async with asyncio.timeout(NOTICED):
        await handle.kill()
    for download in downloads:
        with pytest.raises(ConnectionFailed):
            async for _ in download:
                pass
    await backend.delete_workspace(WORKSPACE)
    handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    assert (await answer(handle, "list", ""))["entries"] == [], "the old files, and their memory, are freed"
    await handle.kill()


@pytest.mark.gate
async def test_a_workspace_goes_from_kernel_to_kernel_until_it_is_deleted(backend: Backend) -> None:
    old = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    await tool(old, "write", "a", content=b"handed on")
    new = await backend.start(replace(LAUNCH, workspace=WORKSPACE))  # before the old kernel ends, as in a session
    await old.kill()
    assert (await tool(new, "read", "a")).endswith(b"handed on")
    await new.kill()
    if backend.keeps_files:
        later = await backend.start(replace(LAUNCH, workspace=WORKSPACE))  # when no kernel has it any more
        assert (await tool(later, "read", "a")).endswith(b"handed on")
        await later.kill()
    await backend.delete_workspace(WORKSPACE)
    await backend.delete_workspace("never there")
    handle = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    assert (await answer(handle, "list", ""))["entries"] == []
    await handle.kill()
    await backend.delete_workspace(WORKSPACE)


async def test_two_kernels_may_share_a_workspace(backend: Backend, handle: KernelHandle) -> None:
    other = await backend.start(replace(LAUNCH, workspace=WORKSPACE))
    await tool(handle, "write", "a", content=b"shared")
    assert (await tool(other, "read", "a")).endswith(b"shared")
    await other.kill()


# -- without a kernel ------------------------------------------------------------------------------------------


HOLD = Launch(NO_KERNEL, workspace=WORKSPACE, shared=True)


@pytest.fixture
async def container(backend: Backend) -> AsyncIterator[KernelHandle]:
    """A container without a kernel, for tools and files."""
    container = await backend.start(HOLD)
    yield container
    await container.kill()
    await backend.delete_workspace(WORKSPACE)


async def program(handle: KernelHandle, command: str, seconds: float = 30.0) -> dict[str, Any]:
    """Return the result of a shell command."""

    request = {"op": "run", "command": command, "cwd": "", "env": {"A": "1"}, "timeout": seconds}
    async with aclosing(handle.run_tool("processes", orjson.dumps(request).decode(), open_end())) as output:
        ended: dict[str, Any] = orjson.loads(b"".join([piece async for piece in output]))
    return ended


def said(ended: dict[str, Any]) -> str:
    """Return the text that a program printed."""
    return base64.b64decode(ended["stdout"]).decode()


async def test_a_container_without_a_kernel_holds_files_and_runs_programs(container: KernelHandle) -> None:
    assert await answer(container, "write", "dir/a", content=b"from outside") == {"size": 12}
    ended = await program(container, "cat dir/a; echo $A > b; exit 3")
    assert (said(ended), ended["code"], ended["timed_out"]) == ("from outside", 3, False)
    assert (await tool(container, "read", "b")).endswith(b"1\n")
    assert {entry["name"] for entry in (await answer(container, "list", ""))["entries"]} == {"dir", "b"}


async def test_a_container_without_a_kernel_stays_until_it_is_killed(container: KernelHandle) -> None:
    waiting = spawn(container.wait(), "waits")
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with asyncio.timeout(NOTICED):
        await container.kill()
    assert (await waiting).reason is ExitReason.KILLED


async def test_leaving_a_program_ends_it(container: KernelHandle) -> None:
    running = spawn(program(container, "trap '' TERM; while sleep 0.05; do echo x >> alive; done"), "client")

    async def size() -> int:
        found = {entry["name"]: entry["size"] for entry in (await answer(container, "list", ""))["entries"]}
        return int(found.get("alive", 0))

    async with asyncio.timeout(60):
        while not await size():  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait({running})
    async with asyncio.timeout(60):
        while True:
            before = await size()
            await asyncio.sleep(0.5)
            if await size() == before:
                break


@pytest.mark.gate
async def test_the_gateways_tools_are_not_among_the_processes(container: KernelHandle) -> None:
    watch = orjson.dumps({"path": "", "recursive": False, "every": None}).decode()
    async with aclosing(container.run_tool("watching", watch, open_end())) as watching:
        assert await anext(watching)
        await program(container, "sleep 61 &")  # it stays, and belongs to nobody who is hidden
        async with aclosing(container.run_tool("processes", '{"op": "list"}')) as output:
            listed = orjson.loads(b"".join([piece async for piece in output]))["processes"]
    commands = [process["command"] for process in listed]
    assert [each for each in commands if "sleep 61" in each] == ["sleep 61"]
    assert not [each for each in commands if ".py" in each and "launcher.py" not in each]


async def test_a_program_ends_at_its_timeout(container: KernelHandle) -> None:
    async with asyncio.timeout(60):
        ended = await program(container, "echo before; sleep 1000", 0.5)
    assert (said(ended), ended["timed_out"]) == ("before\n", True)


async def test_a_container_without_a_kernel_shares_files_with_a_kernel_and_outlives_it(
    backend: Backend, container: KernelHandle
) -> None:
    kernel = await Kernel.start(backend, replace(LAUNCH, workspace=WORKSPACE, shared=True))
    await tool(container, "write", "a", content=b"from outside")
    code = "from pathlib import Path; Path('b').write_text('from inside'); print(Path('a').read_text())"
    assert await execute(kernel, code) == ("ok", "from outside\n")
    await kernel.kill(SessionClosed())
    assert (await tool(container, "read", "b")).endswith(b"from inside")


async def test_files_outlive_their_container_while_a_kernel_uses_them(
    backend: Backend, container: KernelHandle
) -> None:
    kernel = await Kernel.start(backend, replace(LAUNCH, workspace=WORKSPACE, shared=True))
    await tool(container, "write", "a", content=b"still")
    await container.kill()
    again = await backend.start(HOLD)
    assert (await tool(again, "read", "a")).endswith(b"still")
    await kernel.kill(SessionClosed())
    await again.kill()
    await backend.delete_workspace(WORKSPACE)
    fresh = await backend.start(HOLD)
    assert (await answer(fresh, "list", ""))["entries"] == []
    await fresh.kill()


@pytest.mark.engine
async def test_only_containers_that_share_a_workspace_share_tmp(network: str, nothing_left: None) -> None:
    backend = docker_backend()
    await backend.prepare()
    stranger = replace(HOLD, workspace=f"{WORKSPACE}-stranger")
    one, two, alone, other = [
        await backend.start(launch) for launch in (HOLD, HOLD, replace(HOLD, shared=False), stranger)
    ]
    assert (await answer(one, "write", "/tmp/a", content=b"shared")) == {"size": 6}
    assert (await tool(two, "read", "/tmp/a")).endswith(b"shared")
    for handle in (alone, other):
        assert (await answer(handle, "read", "/tmp/a"))["error"] == "absent"
        assert (await answer(handle, "write", "/tmp/a", content=b"not shared")) == {"size": 10}
    assert (await tool(two, "read", "/tmp/a")).endswith(b"\nshared")
    await asyncio.gather(*(handle.kill() for handle in (one, two, alone, other)))
    for launch in (HOLD, stranger):
        await backend.delete_workspace(str(launch.workspace))
    fresh = await backend.start(HOLD)
    assert (await answer(fresh, "list", "/tmp"))["entries"] == []
    await fresh.kill()
    await backend.delete_workspace(WORKSPACE)
    await backend.close()
