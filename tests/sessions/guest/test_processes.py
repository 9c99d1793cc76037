"""Processes in a sandbox: requests to the tool, and that a sandbox gains nothing by false answers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import orjson
import pytest

from sessions.guest.paths import PATH_MAX
from sessions.guest.processes import REQUEST_MAX, Process, find_process, kill_process, list_processes, run_process
from sessions.model.errors import ConnectionFailed, FileNotFound, InvalidRequest, ProcessNotFound, SessionError
from sessions.model.values import Limits
from sessions.session.session import Session

ENDED = {
    "code": 3,
    "stdout": base64.b64encode(b"out").decode(),
    "stderr": base64.b64encode(b"err").decode(),
    "timed_out": False,
    "truncated": False,
    "seconds": 1.5,
}
PROCESS = {
    "pid": 7,
    "command": "sleep 60",
    "state": "S",
    "started": 1.5,
    "cpu_seconds": 0,
    "memory": 1024,
    "directory": "/home/user",
}


class FakeToolRunner:
    """A tool host that records its requests, and gives one answer."""

    limits = Limits()

    def __init__(self, answer: bytes | dict[str, Any]) -> None:
        self.has_input = False
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._line = answer if isinstance(answer, bytes) else orjson.dumps(answer) + b"\n"

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append((name, json.loads(argument)))
        self.has_input = stdin is not None
        yield self._line


async def run(host: FakeToolRunner, command: str = "true", cwd: str = "", env: dict[str, str] | None = None) -> Any:
    return await run_process(host, command, cwd, env or {}, 5.0)


# -- requests --------------------------------------------------------------------------------------------------


async def test_a_command_is_passed_on_as_it_is() -> None:
    host = FakeToolRunner(ENDED)
    ended = await run(host, "echo 'ü\n'", "/home/user/dir", {"A": "1"})
    request = {"op": "run", "command": "echo 'ü\n'", "cwd": "dir", "env": {"A": "1"}, "timeout": 5.0}
    assert host.asked == [("processes", request)]
    assert host.has_input, "the end of the input would end the command"
    assert (ended.exit_code, ended.stdout, ended.stderr, ended.duration) == (3, "out", "err", 1.5)
    assert (ended.timed_out, ended.truncated) == (False, False)


@pytest.mark.parametrize("command", ["a\0b", "a\ud800", "\udfff"])
async def test_a_command_that_is_no_text_is_not_even_sent(command: str) -> None:
    host = FakeToolRunner(ENDED)
    with pytest.raises(InvalidRequest) as refused:
        await run(host, command)
    assert refused.value.details == {"field": "command"}
    assert host.asked == []


@pytest.mark.parametrize("cwd", ["a\0", "/etc\n", "\ud800", "x" * (PATH_MAX + 1)])
async def test_a_directory_that_no_directory_can_be_is_not_sent(cwd: str) -> None:
    host = FakeToolRunner(ENDED)
    with pytest.raises(InvalidRequest):
        await run(host, cwd=cwd)
    assert host.asked == []


@pytest.mark.parametrize(
    ("cwd", "sent"),
    [
        *(("/", "/"), ("/etc", "/etc"), ("//etc/./x/", "/etc/x"), ("/tmp/../etc", "/tmp/../etc"), ("..", "..")),
        *(("~", ""), ("~/a", "a"), ("/workspace/a", "a"), ("/home/user/../x", "../x"), ("/home/user2", "/home/user2")),
    ],
)
async def test_a_command_may_start_in_any_directory_of_the_sandbox(cwd: str, sent: str) -> None:
    host = FakeToolRunner(ENDED)
    await run(host, cwd=cwd)
    assert [request["cwd"] for _, request in host.asked] == [sent]


async def test_a_request_larger_than_one_argument_is_refused(session: Session) -> None:
    overhead = len(orjson.dumps({"op": "run", "command": "", "cwd": "", "env": {"A": "1"}, "timeout": 5.0}))
    longest = ": ".ljust(REQUEST_MAX - overhead, "x")
    assert (await run_process(session, longest, "", {"A": "1"}, 5.0)).exit_code == 0
    for command, env in ((longest + "x", {"A": "1"}), (longest, {"A": "12"}), ("\x01" * (REQUEST_MAX // 5), {})):
        with pytest.raises(InvalidRequest, match="bytes"):
            await run_process(session, command, "", env, 5.0)


async def test_a_command_is_run_by_the_real_tool(session: Session) -> None:
    ended = await run_process(session, "echo out; echo err >&2; exit 3", "", {}, 10.0)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "out\n", "err\n")
    with pytest.raises(FileNotFound):
        await run_process(session, "true", "none", {}, 10.0)


async def test_a_command_past_its_timeout_has_exit_code_124() -> None:
    ended = await run(FakeToolRunner({**ENDED, "code": 137, "timed_out": True}))
    assert (ended.exit_code, ended.timed_out) == (124, True)


async def test_output_bytes_that_are_no_text_are_replaced() -> None:
    ended = await run(FakeToolRunner({**ENDED, "stdout": base64.b64encode(b"a\xff\0b").decode()}))
    assert ended.stdout == "a\ufffd\0b"


async def test_blanks_before_the_answer_are_ignored() -> None:
    assert (await run(FakeToolRunner(b"    " + orjson.dumps(ENDED) + b"\n"))).exit_code == 3


# -- false answers of a sandbox --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", b"no JSON\n", b"[]\n", b"null\n", b"{", b"\xff\xfe\n", b"x" * (9 * 1024**2), b" " * (9 * 1024**2)],
    ids=lambda answer: repr(answer[:16]),
)
async def test_an_invalid_answer_is_a_failure(answer: bytes) -> None:
    host = FakeToolRunner(answer)
    for attempt in (run(host), list_processes(host), find_process(host, 1), kill_process(host, 1)):
        with pytest.raises(ConnectionFailed):
            await attempt


WRONG: list[dict[str, Any]] = [
    *({"code": None}, {"code": "0"}, {"code": 1.5}, {"code": []}),
    *({"stdout": None}, {"stdout": 1}, {"stdout": "!"}, {"stdout": "ü"}, {"stderr": "abc"}, {"stderr": "a\n=="}),
    *({"timed_out": 0}, {"timed_out": "no"}, {"truncated": None}),
    *({"seconds": None}, {"seconds": "1"}, {"seconds": -1}, {"seconds": 1e308}, {"seconds": 2**63}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_an_invalid_result_is_a_failure(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConnectionFailed):
        await run(FakeToolRunner(ENDED | wrong))


@pytest.mark.parametrize("missing", ENDED)
async def test_an_incomplete_result_is_a_failure(missing: str) -> None:
    with pytest.raises(ConnectionFailed):
        await run(FakeToolRunner({name: value for name, value in ENDED.items() if name != missing}))


@pytest.mark.parametrize("processes", [None, 1, "x", {}, [1, None, "x", [], {}]])
async def test_an_invalid_list_counts_as_empty(processes: object) -> None:
    assert (await list_processes(FakeToolRunner({"processes": processes}))).processes == []
    with pytest.raises(ProcessNotFound):
        await find_process(FakeToolRunner({"processes": processes}), 1)


@pytest.mark.parametrize("name", PROCESS)
@pytest.mark.parametrize("value", [None, [], {}])
async def test_invalid_processes_are_left_out_of_a_list(name: str, value: object) -> None:
    found = (await list_processes(FakeToolRunner({"processes": [PROCESS | {name: value}, PROCESS]}))).processes
    assert found == [Process(7, "sleep 60", "S", 1.5, 0.0, 1024, "/home/user")]


@pytest.mark.parametrize(("said", "truncated"), [(True, True), (False, False), (None, False), ("yes", False)])
async def test_a_cut_list_says_so(said: object, truncated: bool) -> None:  # noqa: FBT001
    assert (await list_processes(FakeToolRunner({"processes": [], "truncated": said}))).truncated is truncated


@pytest.mark.parametrize("ended", [True, False])
async def test_a_kill_tells_whether_the_process_has_ended(ended: bool) -> None:  # noqa: FBT001
    assert await kill_process(FakeToolRunner({"ended": ended}), 7) is ended


@pytest.mark.parametrize("answer", [{}, {"ended": None}, {"ended": 1}])
async def test_an_invalid_answer_to_a_kill_is_a_failure(answer: dict[str, Any]) -> None:
    with pytest.raises(ConnectionFailed):
        await kill_process(FakeToolRunner(answer), 7)


async def test_a_process_is_found_by_its_id() -> None:
    host = FakeToolRunner({"processes": [PROCESS, PROCESS | {"pid": 8, "command": "other"}]})
    assert (await find_process(host, 8)).command == "other"
    with pytest.raises(ProcessNotFound, match="no process 9"):
        await find_process(host, 9)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("absent", ProcessNotFound),
        *((word, InvalidRequest) for word in ("denied", "never heard of", None, [1], {"code": "SB001"})),
    ],
)
async def test_a_refused_kill_raises_one_of_our_errors(word: object, kind: type[SessionError]) -> None:
    host = FakeToolRunner({"error": word, "message": "<script>"})
    with pytest.raises(SessionError) as refused:
        await kill_process(host, 7)
    assert type(refused.value) is kind
    assert "script" not in str(refused.value.as_dict())
    assert host.asked == [("processes", {"op": "kill", "pid": 7})]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("directory", FileNotFound),
        *((word, InvalidRequest) for word in ("failed", "never heard of", None, [1])),
    ],
)
async def test_a_refused_command_raises_one_of_our_errors(word: object, kind: type[SessionError]) -> None:
    with pytest.raises(SessionError) as refused:
        await run(FakeToolRunner({"error": word, "reason": "<script>"}))
    assert type(refused.value) is kind
    assert "script" not in str(refused.value.as_dict())
