"""The Kubernetes backend while the API of its cluster fails, refuses, or loses a connection."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, ClientResponse, ClientWebSocketResponse
from structlog.testing import capture_logs

from sessions.backends import kubernetes
from sessions.backends.base import Launch
from sessions.backends.kubernetes import KubernetesBackend, guests, handle
from sessions.backends.kubernetes.guests import Guest
from sessions.backends.kubernetes.handle import PodHandle
from sessions.backends.kubernetes.profile import FIRST_PORT, PORTS, WORKSPACE
from sessions.backends.kubernetes.streams import Stream
from sessions.model.errors import ConnectionFailed, StartFailed
from tests.fakes import KERNELSPECS, until
from tests.sessions.backends.cluster_api import Answer, Api, prove, serve

LAUNCH = Launch(KERNELSPECS.find("python"), workspace="workspace")
SHARED = replace(LAUNCH, shared=True)
#: seconds that no test needs, unless something waits for ever
SOON = 20.0
REFUSED = Answer(403)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the Pods' files, which the user of Pods may enter. The backend waits for less long."""
    monkeypatch.setattr(kubernetes, "prove", prove)
    monkeypatch.setattr(kubernetes, "AGAIN", 0.01)
    monkeypatch.setattr(kubernetes, "DELIVERED", 0.01)
    monkeypatch.setattr(handle, "AGAIN", 0.01)
    monkeypatch.setattr(guests, "END", 0.01)
    monkeypatch.setattr(handle, "START", SOON / 4)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def api(nothing_left: None, place: Path) -> Api:
    return Api(place)


@asynccontextmanager
async def ready(api: Api) -> AsyncIterator[KubernetesBackend]:
    """A backend that starts kernels, and has adopted those of an earlier gateway: none."""
    async with serve(api) as make, asyncio.timeout(SOON):
        backend = make()
        await backend.prepare()
        await backend.adopt({}, ())
        yield backend


# -- the watch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        *(Answer(status) for status in (401, 403, 410, 429, 503, 504)),
        Answer(200, b'{"kind": "Status"}\n'),
        Answer(200, b'"Bad Gateway"\n'),
        Answer(200, b"<html>Bad Gateway</html>\n"),
        Answer(200, b" " * 5 * 1024**2),
    ],
    ids=["401", "403", "410", "429", "503", "504", "no event", "a text", "no JSON", "a line without end"],
)
async def test_a_watch_that_fails_is_opened_again(api: Api, answer: Answer) -> None:
    api.watches.append(answer)
    async with ready(api) as backend:
        await until(lambda: not api.watches)
        assert (await backend.start(LAUNCH)).id in api.pods


async def test_no_kernels_are_taken_while_the_watch_is_refused(api: Api) -> None:
    api.watches += [REFUSED] * 20
    told: list[bool] = []
    async with ready(api) as backend:
        backend.report_doubts(lambda: told.append(backend.refusal is not None))
        await until(lambda: not api.watches)
        await until(lambda: told == [True, False])


async def test_a_pod_that_runs_before_the_list_of_pods_is_made_is_seen(api: Api) -> None:
    async with ready(api) as backend:
        api.listing.clear()
        lists = api.lists
        api.report("ERROR", {})  # the watch is opened again, after a list
        await until(lambda: api.lists > lists)
        starting = asyncio.get_running_loop().create_task(backend.start(LAUNCH))
        await until(lambda: api.pods)
        api.listing.set()
        assert (await starting).id in api.pods


async def test_a_failure_that_nobody_expects_does_not_end_the_watch(place: Path) -> None:
    with capture_logs() as logs:  # not with `api`, which allows no error in the log
        api = Api(place, watches=[Answer(200, b'{"type": "MODIFIED", "object": {}}\n')])
        async with ready(api) as backend:
            await until(lambda: not api.watches)
            assert (await backend.start(LAUNCH)).id in api.pods
    assert [entry["task"] for entry in logs if entry["log_level"] == "error"] == ["watch of Pods"]


# -- the copy of a workspace ----------------------------------------------------------------------------------------


async def ended(api: Api, backend: KubernetesBackend, command: str = "echo 42 > data") -> Path:
    """Start and end a kernel that has made files. Return the directory of its files."""
    first = await backend.start(LAUNCH)
    await run(first, command)
    await first.kill()
    assert first.id in api.pods
    return api.files(first.id)


async def run(kernel: PodHandle | Guest, command: str) -> bytes:
    """Run a command in the workspace of a kernel, as the kernel's user."""
    assert isinstance(kernel, PodHandle)
    output = kernel.output(["sh", "-c", f"cd {WORKSPACE} && {command}"], None, successes=(0,))
    async with aclosing(output) as found:
        return b"".join([piece async for piece in found])


async def test_the_next_kernel_gets_all_files(api: Api) -> None:
    async with ready(api) as backend:
        before = await ended(api, backend, "echo 42 > data && truncate -s 1G sparse")
        after = api.files((await backend.start(LAUNCH)).id)
        assert (after / "data").read_text() == "42\n"
        assert (after / "sparse").stat().st_size == 2**30
        assert (after / "sparse").stat().st_blocks == 0
        await until(lambda: before.name not in api.pods)


async def test_the_next_kernel_gets_files_that_their_owner_may_not_read(api: Api) -> None:
    async with ready(api) as backend:
        made = "mkdir -p locked/inner && echo 1 > locked/inner/file && echo 2 > secret"
        await ended(api, backend, f"{made} && chmod 000 secret locked/inner/file locked/inner locked")
        assert await run(await backend.start(LAUNCH), "cat secret locked/inner/file") == b"2\n1\n"


@pytest.mark.parametrize("program", ["-cSf", "-xf"], ids=["the archive", "the files"])
@pytest.mark.parametrize("end", [2, 137, None], ids=["an error", "a kill", "a broken connection"])
async def test_a_copy_that_fails_leaves_the_files_to_the_next_attempt(api: Api, program: str, end: int | None) -> None:
    async with ready(api) as backend:
        before = await ended(api, backend)
        api.ends = {program: end}
        with pytest.raises(StartFailed, match="could not be copied"):
            await backend.start(LAUNCH)
        assert list(api.pods) == [before.name]
        api.ends = {}
        after = api.files((await backend.start(LAUNCH)).id)
        assert (after / "data").exists()


async def test_files_that_change_while_they_are_copied_are_no_failure(api: Api) -> None:
    async with ready(api) as backend:
        await ended(api, backend)
        api.ends = {"-cSf": 1}
        assert (api.files((await backend.start(LAUNCH)).id) / "data").exists()


async def test_a_copy_may_print_nothing_for_longer_than_a_tool(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(api) as backend:
        await ended(api, backend)
        api.delays = {"-xf": 0.5}
        for each in (Stream.read, PodHandle.output):
            monkeypatch.setattr(each, "__kwdefaults__", {**(each.__kwdefaults__ or {}), "within": 0.1})
        assert (api.files((await backend.start(LAUNCH)).id) / "data").exists()


async def test_a_copy_has_a_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "COPY", 0.1)
    async with ready(api) as backend:
        await ended(api, backend)
        api.delays = {"-xf": SOON}
        with pytest.raises(StartFailed, match="could not be copied"):
            await backend.start(LAUNCH)


# -- removals -------------------------------------------------------------------------------------------------------


async def test_a_removal_that_is_refused_is_tried_again_and_told_once(api: Api) -> None:
    async with ready(api) as backend:
        kernel = await backend.start(replace(LAUNCH, workspace=None))
        api.deletions = [REFUSED] * 3
        with capture_logs() as logs:
            await kernel.kill()
            await until(lambda: not backend.leftovers)
        assert kernel.id not in api.pods
    assert ["refuses to remove" in entry["event"] for entry in logs].count(True) == 1


async def test_a_stray_that_may_not_be_removed_stops_nothing(api: Api) -> None:
    async with ready(api) as backend:
        api.pods["stray"] = {"metadata": {"name": "stray"}}
        api.deletions = [REFUSED] * 10_000
        api.report("ERROR", {})  # the watch is opened again, after a look for strays
        await until(lambda: len(api.deletions) < 10_000)
        assert (await backend.start(LAUNCH)).id in api.pods
        assert backend.refusal is None  # the watch goes on
        api.deletions = []


# -- handshakes -----------------------------------------------------------------------------------------------------


class Broken:
    """A connection that is broken."""

    closed = False

    async def send_bytes(self, _message: bytes) -> None:
        raise ClientConnectionResetError("Cannot write to closing transport")

    async def close(self) -> None:
        self.closed = True


async def test_input_over_a_broken_connection_is_a_failed_connection() -> None:
    stream = Stream(Broken())
    for sent in (stream.write(b"hello"), stream.end_input()):
        with pytest.raises(ConnectionFailed):
            await sent


async def test_a_tool_that_answers_before_it_has_read_all_input_has_not_failed() -> None:
    await Stream(Broken()).feed(pieces(b"more"))


async def test_input_that_fails_breaks_the_connection() -> None:
    connection: Any = Broken()
    with pytest.raises(StartFailed):
        await Stream(connection).feed(pieces())
    assert connection.closed


async def pieces(*all_of_them: bytes) -> AsyncIterable[bytes]:
    for piece in all_of_them:
        yield piece
    raise StartFailed


def break_input(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Break the connections on which something is sent, after a number of messages."""
    send, sent = ClientWebSocketResponse.send_bytes, itertools.count()

    async def send_bytes(connection: ClientWebSocketResponse, message: bytes) -> None:
        await (send(connection, message) if next(sent) < after else Broken().send_bytes(message))

    monkeypatch.setattr(ClientWebSocketResponse, "send_bytes", send_bytes)


async def test_a_kernel_whose_handshake_is_lost_fails_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(api) as backend:
        break_input(monkeypatch)
        with pytest.raises(StartFailed, match="cannot be reached"):
            await backend.start(LAUNCH)
        assert not api.pods


async def test_a_shared_pod_is_removed_if_its_first_kernel_does_not_start(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(api) as backend:
        break_input(monkeypatch, after=1)  # the Pod's own handshake
        with pytest.raises(StartFailed, match="could not be started"):
            await backend.start(SHARED)
        await until(lambda: not api.pods)


async def test_a_shared_pod_is_removed_if_its_first_start_is_cancelled(api: Api) -> None:
    async with ready(api) as backend:
        api.delays = {"mkfifo": SOON}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await backend.start(SHARED)
        await until(lambda: not api.pods)


async def test_a_shared_pod_that_all_have_left_while_it_was_made_ends_with_its_workspace(api: Api) -> None:
    async with ready(api) as backend:
        starting = asyncio.get_running_loop().create_task(backend.start(SHARED))
        await until(lambda: api.pods)
        starting.cancel()
        await asyncio.wait({starting})
        await backend.delete_workspace("workspace")
        await until(lambda: not api.pods)


async def test_the_port_of_a_shared_pod_is_free_after_a_start_that_was_lost(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(api) as backend:
        await backend.start(SHARED)
        with monkeypatch.context() as lost:
            break_input(lost)
            with pytest.raises(StartFailed):
                await backend.start(SHARED)
        third, fourth = await backend.start(SHARED), await backend.start(SHARED)
        ports = [each.connection_info.shell_port for each in (third, fourth)]
        assert ports == [FIRST_PORT + 2 * PORTS, FIRST_PORT + 3 * PORTS]


async def test_a_user_that_leaves_does_not_end_the_pod_of_a_kernel_that_starts(api: Api) -> None:
    async with ready(api) as backend:
        first = await backend.start(SHARED)
        api.delays = {"mkfifo": 0.5}
        second = asyncio.get_running_loop().create_task(backend.start(SHARED))
        await until(lambda: sum("mkfifo" in command for command in api.commands) == 2)
        await first.kill()
        assert (await second).id.partition("/")[0] in api.pods


async def test_a_wait_for_a_users_end_goes_on_after_a_connection_that_was_lost_with_its_handshake(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "AGAIN", 0.01)
    async with ready(api) as backend:
        await backend.start(SHARED)
        with monkeypatch.context() as lost:
            lost.setattr(ClientResponse, "connection", None)  # as aiohttp finds it then
            await until(lambda: sum("select" in command for command in api.commands) > 1)
