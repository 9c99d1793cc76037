"""Watchers of E2B's sandboxes over HTTP: the stream, and the calls of clients that ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.gateways import Gateway
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.e2b import *  # noqa: F403 - the fixtures
from tests.kernel_gateway.e2b import ENVD, STREAM, Box, boxed, control, envelope, messages

Message = dict[str, Any]


def watch(box: Box, body: bytes | Message, **headers: str) -> requests.Response:
    body = body if isinstance(body, bytes) else envelope(body)
    path = "/filesystem.Filesystem/WatchDir"
    return box.call("POST", path, ENVD, data=body, headers=STREAM | headers, stream=True)


def call(box: Box, method: str, **body: Any) -> requests.Response:
    return box.call("POST", f"/filesystem.Filesystem/{method}", ENVD, json=body)


def write(box: Box, path: str) -> None:
    assert box.call("POST", "/files", ENVD, params={"path": path}, files={"file": b"x"}).status_code == 200


def event(kind: str, name: str) -> Message:
    return {"name": name, "type": f"EVENT_TYPE_{kind}"}


def test_a_stream_tells_what_changes_and_that_it_lives(box: Box) -> None:
    body: Message = {"path": "/home/user", "recursive": True}
    with watch(box, body, **{"Keepalive-Ping-Interval": "1"}) as response:
        assert (response.status_code, response.headers["Content-Type"]) == (200, "application/connect+json")
        coming = messages(response.iter_content(None))
        assert next(coming) == (0, {"start": {}})
        assert next(coming) == (0, {"keepalive": {}})
        write(box, "a/b")
        told = [message["filesystem"] for _, message in coming_changes(coming, 3)]
        assert told == [event("CREATE", "a"), event("CREATE", "a/b"), event("WRITE", "a/b")]
        assert control(box.gateway, "DELETE", f"/sandboxes/{box.id}").status_code == 204
        with pytest.raises(requests.exceptions.RequestException):
            list(coming)


def coming_changes(coming: Iterator[tuple[int, Message]], count: int) -> Iterator[tuple[int, Message]]:
    """Yield the next messages that are no signs of life."""
    while count:
        message = next(coming)
        if "keepalive" not in message[1]:
            count -= 1
            yield message


def test_a_client_that_leaves_makes_room_for_others(box: Box) -> None:
    streams = [watch(box, {"path": ""}) for _ in range(4)]
    told = [messages(stream.iter_content(None)) for stream in streams]  # requests leaves when one of these is deleted
    assert [next(each) for each in told] == [(0, {"start": {}})] * 4
    refused = call(box, "CreateWatcher", path="")
    assert (refused.status_code, refused.json()["code"]) == (429, "resource_exhausted")
    for stream in streams:
        stream.close()
    until(lambda: call(box, "CreateWatcher", path="").status_code == 200)


def test_a_client_that_asks_gets_what_has_changed_since(gateway: Gateway, box: Box) -> None:
    made = call(box, "CreateWatcher", path="/home/user", recursive=False).json()
    write(box, "file")
    told = call(box, "GetWatcherEvents", **made).json()
    assert told == {"events": [event("CREATE", "file"), event("WRITE", "file")]}
    assert call(box, "GetWatcherEvents", **made).json() == {"events": []}
    with boxed(gateway) as other:
        assert call(other, "GetWatcherEvents", **made).json()["code"] == "not_found"
        assert call(other, "RemoveWatcher", **made).status_code == 404
    assert call(box, "RemoveWatcher", **made).json() == {}
    assert call(box, "GetWatcherEvents", **made).status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"path": "absent"}, "not_found"),
        ({"path": "/etc"}, "invalid_argument"),
        ({"path": "../.."}, "invalid_argument"),
        ({"path": 7}, "invalid_argument"),
        ({"path": "", "recursive": "perhaps"}, "invalid_argument"),
    ],
    ids=str,
)
def test_what_cannot_be_watched_is_refused_in_both_forms(box: Box, body: Message, code: str) -> None:
    ((flags, message),) = messages(watch(box, body).iter_content(None))
    assert (flags, message["error"]["code"]) == (2, code)
    assert call(box, "CreateWatcher", **body).json()["code"] == code


def test_a_message_that_cannot_be_read_is_refused(box: Box) -> None:
    for body in (b"", b"\0", envelope(b"no json"), envelope({}) + envelope({})):
        ((flags, message),) = messages(watch(box, body).iter_content(None))
        assert (flags, message["error"]["code"]) == (2, "invalid_argument")
