"""Commands of E2B's sandboxes over HTTP: streams of messages, and calls that their SDK does not make."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
import requests

from tests.gateways import Gateway
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.e2b import *  # noqa: F403 - the fixtures
from tests.kernel_gateway.e2b import ENVD, STREAM, Box, boxed, envelope, messages

Message = dict[str, Any]


def post(box: Box, method: str, body: bytes, **options: Any) -> requests.Response:
    headers = STREAM | options.pop("headers", {})
    return box.call("POST", f"/process.Process/{method}", ENVD, data=body, headers=headers, **options)


def call(box: Box, method: str, **body: Any) -> requests.Response:
    return box.call("POST", f"/process.Process/{method}", ENVD, json=body)


def told(response: requests.Response) -> list[tuple[int, Message]]:
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/connect+json")
    return list(messages(iter([response.content])))


def failed(response: requests.Response) -> str:
    """Return the code of a stream that is nothing but a failure."""
    ((flags, message),) = told(response)
    assert flags == 2
    assert message["error"]["message"]
    code: str = message["error"]["code"]
    return code


def start(command: str, **more: Any) -> bytes:
    return envelope({"process": {"cmd": "/bin/sh", "args": ["-c", command]}, **more})


def pid_of(message: Message) -> int:
    pid: int = message["event"]["start"]["pid"]
    return pid


def test_a_stream_begins_with_the_process_and_ends_with_its_end(box: Box) -> None:
    answer = told(post(box, "Start", start("echo out; exit 3", stdin=False)))
    assert [flags for flags, _ in answer] == [0, 0, 0, 2]
    assert pid_of(answer[0][1]) > 0
    assert answer[1][1] == {"event": {"data": {"stdout": base64.b64encode(b"out\n").decode()}}}
    assert answer[2][1] == {"event": {"end": {"exitCode": 3, "exited": True, "status": "exit status 3"}}}
    assert answer[3][1] == {}
    killed = told(post(box, "Start", start("kill -9 $$")))[-2][1]["event"]["end"]
    assert killed == {"exitCode": -1, "exited": False, "status": "signal: killed", "error": "signal: killed"}


def test_a_silent_command_gives_signs_of_life(box: Box) -> None:
    body = start("until test -e go; do sleep 0.05; done", stdin=False)
    headers = STREAM | {"Keepalive-Ping-Interval": "1"}
    with box.call("POST", "/process.Process/Start", ENVD, data=body, headers=headers, stream=True) as response:
        coming = messages(response.iter_content(None))
        next(coming)
        assert next(coming) == (0, {"event": {"keepalive": {}}})
        box.call("POST", "/files", ENVD, params={"path": "go"}, data=b"")
        assert "end" in [message for _, message in coming][-2]["event"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (b"\0\0", "invalid_argument"),
        (envelope({}) + envelope({}), "invalid_argument"),
        (envelope({})[:-1], "invalid_argument"),
        (envelope({}, flags=1), "invalid_argument"),
        (envelope({}, flags=2), "invalid_argument"),
        (struct.pack(">BI", 0, 2**32 - 1), "invalid_argument"),
        (envelope(b"no json"), "invalid_argument"),
        (envelope(b"[" * 100_000), "invalid_argument"),
        (envelope({"process": {"cmd": 7}}), "invalid_argument"),
        (envelope({"process": {}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/absent"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true\0"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true", "cwd": "/etc\0"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true", "cwd": "absent"}}), "not_found"),
        (envelope({"process": {"cmd": "true", "envs": {"LD_PRELOAD": "x"}}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true", "args": ["x" * 200_000]}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true"}, "tag": "x" * 300}), "invalid_argument"),
        (envelope({"process": {"cmd": "true"}, "pty": {"size": {"cols": 0, "rows": 1}}}), "invalid_argument"),
        (envelope({"process": {"cmd": "true"}, "pty": {"size": {"cols": 10**6}}}), "invalid_argument"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_hostile_start_is_refused_in_the_stream(box: Box, body: bytes, code: str) -> None:
    assert failed(post(box, "Start", body)) == code
    assert call(box, "List").json() == {"processes": []}
    assert told(post(box, "Start", start("true")))[-1] == (2, {})


@pytest.mark.parametrize("timeout", ["0", "-1", "1.5", "x", "", "1" * 11])
def test_a_timeout_that_is_no_number_of_milliseconds_is_refused(box: Box, timeout: str) -> None:
    assert failed(post(box, "Start", start("true"), headers={"Connect-Timeout-Ms": timeout})) == "invalid_argument"


def test_a_command_ends_at_its_clients_timeout_and_its_stream_says_so(box: Box) -> None:
    ended = told(post(box, "Start", start("exit 3"), headers={"Connect-Timeout-Ms": "9999999999"}))
    assert ended[-1] == (2, {})
    ended = told(post(box, "Start", start("echo begun; exec sleep 300"), headers={"Connect-Timeout-Ms": "500"}))
    assert not [message for _, message in ended if "end" in message.get("event", {})]
    assert ended[-1][1]["error"]["code"] == "deadline_exceeded"
    assert ended[-1][1]["error"]["message"].startswith("the command ran longer than 0.5 s")
    assert call(box, "List").json() == {"processes": []}


@pytest.mark.parametrize(
    "selector", [{"pid": 1}, {"pid": 0}, {"pid": -1}, {"pid": 10**9}, {"tag": "none"}, {}], ids=str
)
def test_what_was_not_started_here_is_not_there(box: Box, selector: Message) -> None:
    process = {"process": selector}
    assert failed(post(box, "Connect", envelope(process))) == "not_found"
    assert failed(post(box, "StreamInput", envelope({"start": process}))) == "not_found"
    for method, more in (
        ("SendInput", {"input": {"stdin": "YQ=="}}),
        ("CloseStdin", {}),
        ("SendSignal", {"signal": "SIGNAL_SIGKILL"}),
        ("Update", {"pty": {"size": {"cols": 1, "rows": 1}}}),
    ):
        answer = call(box, method, **process, **more)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), method


def test_commands_are_found_by_their_tags_and_take_only_what_they_were_started_for(box: Box) -> None:
    body = start("trap 'echo term; exit 5' TERM; echo on; while :; do sleep 0.02; done", tag="mine", stdin=False)
    with post(box, "Start", body, stream=True) as response:
        coming = messages(response.iter_content(None))
        pid = pid_of(next(coming)[1])
        assert "data" in next(coming)[1]["event"]
        (listed,) = call(box, "List").json()["processes"]
        assert (listed["pid"], listed["tag"], listed["config"]["cmd"]) == (pid, "mine", "/bin/sh")
        mine = {"process": {"tag": "mine"}}
        assert call(box, "SendInput", **mine, input={"stdin": "YQ=="}).json()["code"] == "invalid_argument"
        assert call(box, "SendInput", **mine, input={"stdin": "!"}).json()["code"] == "invalid_argument"
        assert call(box, "Update", **mine, pty={"size": {}}).json()["code"] == "invalid_argument"
        assert call(box, "SendSignal", **mine, signal="SIGNAL_SIGSTOP").json()["code"] == "invalid_argument"
        assert call(box, "SendSignal", **mine, signal="SIGNAL_SIGTERM").json() == {}
        assert [message for _, message in coming][-2]["event"]["end"]["exitCode"] == 5


def test_another_sandboxs_commands_are_not_there(gateway: Gateway, box: Box) -> None:
    with boxed(gateway) as other, post(other, "Start", start("sleep 60", tag="x"), stream=True) as response:
        pid = pid_of(next(messages(response.iter_content(None)))[1])
        assert call(box, "List").json() == {"processes": []}
        for selector in ({"pid": pid}, {"tag": "x"}):
            answer = call(box, "SendSignal", process=selector, signal="SIGNAL_SIGKILL")
            assert answer.status_code == 404
        assert call(other, "List").json()["processes"][0]["pid"] == pid


@pytest.mark.parametrize(
    "body",
    [
        envelope({"data": {"input": {"stdin": "YQ=="}}}),
        envelope({"start": {"process": {"tag": "cat"}}}) + envelope({"data": {"input": {"stdin": "!"}}}),
        envelope({"start": {"process": {"tag": "cat"}}}) + b"\0",
        envelope({"start": {"process": {"tag": "cat"}}}) + struct.pack(">BI", 0, 2**31),
    ],
    ids=lambda body: str(body[-30:]),
)
def test_streamed_input_that_cannot_be_read_is_refused(box: Box, body: bytes) -> None:
    with post(box, "Start", start("cat", tag="cat"), stream=True) as response:
        coming = messages(response.iter_content(None))
        next(coming)
        assert failed(post(box, "StreamInput", body)) == "invalid_argument"
        good: list[Message] = [
            {"start": {"process": {"tag": "cat"}}},
            {"keepalive": {}},
            {"data": {"input": {"stdin": "YQ=="}}},
        ]
        assert told(post(box, "StreamInput", b"".join(envelope(message) for message in good))) == [(0, {}), (2, {})]
        assert call(box, "CloseStdin", process={"tag": "cat"}).json() == {}
        assert next(coming)[1] == {"event": {"data": {"stdout": "YQ=="}}}


def test_input_that_is_not_read_holds_its_client_and_nobody_else(box: Box) -> None:
    with post(box, "Start", start("sleep 60", tag="deaf"), stream=True) as response:
        next(messages(response.iter_content(None)))
        large = base64.b64encode(bytes(1_000_000)).decode()
        body = {"process": {"tag": "deaf"}, "input": {"stdin": large}}
        with pytest.raises(requests.exceptions.ReadTimeout):
            box.call("POST", "/process.Process/SendInput", ENVD, json=body, timeout=2)
        assert box.text("1 + 1") == "2"
        assert call(box, "SendSignal", process={"tag": "deaf"}, signal="SIGNAL_SIGKILL").json() == {}
    until(lambda: call(box, "List").json() == {"processes": []})


def test_a_sandbox_has_a_limited_number_of_commands(gateway: Gateway, box: Box) -> None:
    responses = [post(box, "Start", start("sleep 60"), stream=True) for _ in range(8)]
    try:
        assert failed(post(box, "Start", start("true"))) == "resource_exhausted"
    finally:
        for response in responses:
            response.close()
