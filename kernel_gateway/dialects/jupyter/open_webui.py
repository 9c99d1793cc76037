"""What Open WebUI's Jupyter engine gets in place of messages that it cannot read. Pure.

Its WebSocket library closes the connection when a message is larger than 1 MiB, and its code ends at a binary frame.
Source: `open_webui.utils.code_interpreter` of Open WebUI 0.12.4, and `max_size` of websockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sessions.kernels.messages import Message
from sessions.model import exact_json

#: paths that begin with this are Open WebUI's; its setting for the URL ends with it
PREFIX = "/open-webui"
#: maximum bytes of a message, with room for what the frame adds
MESSAGE_MAX = 1024**2 - 4096
#: characters of one piece of a text. One character has at most six bytes as JSON
PIECE = MESSAGE_MAX // 8
#: characters of an error's message that are kept
ERROR_MAX = 10_000
#: messages that Open WebUI does not read
UNREAD = frozenset({"execute_input", "execute_reply"})


def readable(message: Message) -> Iterator[Message]:
    """Yield the messages that Open WebUI can read in place of a message.

    Long text is sent in pieces. A line on stderr replaces any other output that is too large.
    """
    if message.buffers:  # they are parts of widgets, which Open WebUI does not show
        return
    if sum(map(len, message.parts)) <= MESSAGE_MAX:
        yield message
    elif message.type == "stream":
        content = exact_json.loads(message.parts[3])
        text = str(content.get("text", ""))
        for start in range(0, len(text), PIECE):
            yield _with(message, "stream", content | {"text": text[start : start + PIECE]})
    elif message.type == "error":
        content = exact_json.loads(message.parts[3])
        name, value = (str(content.get(part, ""))[:ERROR_MAX] for part in ("ename", "evalue"))
        yield _with(message, "error", {"ename": name, "evalue": value, "traceback": [f"{name}: {value}"]})
    elif message.type not in UNREAD:
        size = sum(map(len, message.parts))
        told = f"kernel-gateway: an output of {size} bytes was left out, because Open WebUI reads at most 1 MiB: "
        yield _with(message, "stream", {"name": "stderr", "text": f"{told}show a smaller image, or print less\n"})


def _with(message: Message, msg_type: str, content: dict[str, Any]) -> Message:
    header = exact_json.loads(message.parts[0]) | {"msg_type": msg_type}
    written = (exact_json.dumps(header), message.parts[1], b"{}", exact_json.dumps(content))
    return replace(message, header=header, content=content, parts=written)
