"""Messages that hostile code sends on its kernel's channels. Runs inside the kernel, with the kernel's own keys.

The source of this module is the first cell of a forging session. It respects threads only where it must.
"""

from __future__ import annotations

import hmac
import json
import threading
import uuid
from typing import Any

from IPython.core.getipython import get_ipython

Json = dict[str, Any]
DELIMITER = b"<IDS|MSG>"
#: the routing id that the gateway's sockets have chosen
GATEWAY = b"gateway"

kernel: Any = getattr(get_ipython(), "kernel", None)


def parent() -> Json:
    """The header of the request that the cell answers."""
    header: Json = dict(kernel.get_parent()["header"])
    header["date"] = str(header["date"])
    return header


def header(kind: str, **more: Any) -> Json:
    """A valid header."""
    return {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "k", "session": "s", "version": "5.4"} | more


def signed(*parts: Any) -> list[bytes]:
    """Frames with a valid signature: header, parent, metadata, content (JSON values, or bytes unchanged)."""
    frames = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
    mac = hmac.new(kernel.session.key, digestmod=kernel.session.digest_mod)
    for frame in frames:
        mac.update(frame)
    return [DELIMITER, mac.hexdigest().encode(), *frames]


def message(kind: str, content: Any, parent_header: Any = None, **more: Any) -> list[bytes]:
    """A whole message that answers the cell, or another parent."""
    return signed(header(kind, **more), parent() if parent_header is None else parent_header, {}, content)


def on_iopub(*messages: list[bytes]) -> None:
    """Publish frames, in order."""
    for frames in messages:
        kernel.iopub_thread.send_multipart(frames)


def on_shell(*messages: list[bytes]) -> None:
    """Send frames to the gateway's shell socket; the kernel's socket for it belongs to the cell's own thread, too."""
    for frames in messages:
        kernel.shell_stream.socket.send_multipart([GATEWAY, *frames])


def on_control(*messages: list[bytes]) -> None:
    """Send frames to the gateway's control socket."""
    sent = threading.Event()

    def send() -> None:
        for frames in messages:
            kernel.control_stream.socket.send_multipart([GATEWAY, *frames])
        sent.set()

    kernel.control_thread.io_loop.add_callback(send)
    sent.wait(600)


def on_stdin(*messages: list[bytes]) -> None:
    """Send frames to the gateway's stdin socket; the kernel's socket for it belongs to the cell's own thread."""
    for frames in messages:
        kernel.stdin_socket.send_multipart([GATEWAY, *frames])


def idle() -> list[bytes]:
    """The message that reports the end of the cell."""
    return message("status", {"execution_state": "idle"})


def replied(**content: Any) -> list[bytes]:
    """The message with the result of the cell."""
    return message("execute_reply", {"status": "ok", "execution_count": 1} | content)


def printed(text: str) -> list[bytes]:
    """Output of the cell."""
    return message("stream", {"name": "stdout", "text": text})


def malformed() -> list[list[bytes]]:
    """Signed frames that are no message, or a message with invalid parts."""
    good = header("stream")
    content = {"name": "stdout", "text": "malformed"}
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    parts: list[tuple[Any, ...]] = [
        (good, parent(), {}, b"{"),
        (good, parent(), {}, b""),
        (good, parent(), {}, b"\xff\xfe"),
        (good, parent(), {}, b"NaN"),
        (good, parent(), {}, b'{"text": NaN}'),
        (good, parent(), {}, b'{"text": 1e999}'),
        (good, parent(), {}, b'{"text": ' + b"9" * 5000 + b"}"),
        (good, parent(), {}, b'{"text": "\\ud800"}'),
        (good, parent(), {}, deep),
        (good, parent(), {}, []),
        (good, parent(), {}, "text"),
        (good, parent(), {}, None),
        (good, parent(), {}, 5),
        (good, parent(), [], content),
        (good, [], {}, content),
        (good, None, {}, content),
        (good, deep, {}, content),
        (good, {"msg_id": 5}, {}, content),
        (good, {"msg_id": None}, {}, content),
        (good, {"msg_id": {"a": 1}}, {}, content),
        ({}, parent(), {}, content),
        ([], parent(), {}, content),
        (None, parent(), {}, content),
        (b"", parent(), {}, content),
        (header("stream", msg_id=None), parent(), {}, content),
        (header("stream", msg_type=5), parent(), {}, content),
        (header("stream", msg_type=["stream"]), parent(), {}, content),
        (header("stream", date="9999-99-99"), parent(), {}, content),
        (header("stream", date=5), parent(), {}, content),
        (header("stream", version="abc"), parent(), {}, content),
        (header("stream", version=5.3), parent(), {}, content),
        (good, parent(), {}, {"name": ["stdout"], "text": {}}),
        (good, parent(), {}, {"name": "stdout", "text": None}),
        (header("status"), parent(), {}, {}),
        (header("status"), parent(), {}, {"execution_state": ["idle"]}),
        (header("display_data"), parent(), {}, {"data": [1], "metadata": 5, "transient": []}),
        (header("display_data"), parent(), {}, {"data": {"text/plain": {"a": 1}}, "transient": {"display_id": {}}}),
        (header("update_display_data"), parent(), {}, {"transient": None}),
        (header("execute_result"), parent(), {}, {"execution_count": "1", "data": None}),
        (header("execute_input"), parent(), {}, {"code": 5, "execution_count": -1}),
        (header("error"), parent(), {}, {"ename": None, "evalue": {}, "traceback": "no list"}),
        (header("clear_output"), parent(), {}, {"wait": "yes"}),
        (header("comm_open"), parent(), {}, {"comm_id": 5}),
        (header("x" * 100_000), parent(), {}, {}),
    ]
    whole = [signed(*one) for one in parts]
    valid = message("stream", content)
    broken = [
        [b"x"],
        [b""],
        [DELIMITER],
        [DELIMITER, b"", b"", b"", b""],
        [b"x", DELIMITER, *valid],
        valid[1:],
        [DELIMITER, b"0" * 64, *valid[2:]],
        [DELIMITER, b"\xff" * 64, *valid[2:]],
        [DELIMITER, b"", *valid[2:]],
        [*valid, *([b""] * 20_000)],
        [b"i"] * 10_000 + valid,
    ]
    return whole + broken
