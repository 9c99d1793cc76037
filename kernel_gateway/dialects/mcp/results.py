"""Results of tools: text that begins with what became of the state, pictures, and the same as data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernel_gateway.dialects.mcp.rpc import Json
from sessions.cells.outputs import shortened
from sessions.model import exact_json
from sessions.model.errors import SessionError
from sessions.model.values import ExecutionResult, Status

#: characters of text that a result shows; the rest is in a file of the session
TEXT_MAX = 30_000
#: characters of all pictures of a result: a result fits into one event of a stream, of 1 MiB in Python's client
PICTURES_MAX = 500 * 1024
#: media types of pictures that clients show
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass
class Shown:
    """What the outputs of a cell show."""

    texts: list[str] = field(default_factory=list)
    pictures: list[Json] = field(default_factory=list)
    #: value of the last expression
    result: str | None = None
    #: name and message of the exception
    error: Json | None = None
    #: bytes of pictures that were left out
    left_out: int = 0
    #: further lines for the model
    notes: list[str] = field(default_factory=list)
    #: files of the session that hold the whole text
    files: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text."""
        return "".join(self.texts)

    def add(self, output: Json) -> None:
        """Add an output, in nbformat's form and as plain text."""
        match output["output_type"]:
            case "stream":
                self.texts.append(output["text"])
                return
            case "error":
                self.error = {"name": output["ename"], "message": output["evalue"]}
                self._line("\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}")
                return
        data = output["data"]
        shown = [mime for mime in _PICTURES if isinstance(data.get(mime), str)]
        if shown:
            self._picture(shown[0], data[shown[0]])
        text = data.get("text/plain", "")
        if output["output_type"] == "execute_result":
            self.result = text
        if text and not (shown and text.startswith("<")):  # `<Figure size …>` says nothing beside its picture
            self._line(text)

    def _line(self, text: str) -> None:
        if self.texts and not self.texts[-1].endswith("\n"):
            self.texts.append("\n")
        self.texts.append(f"{text}\n")

    def _picture(self, mime: str, data: str) -> None:
        data = data.replace("\n", "")
        if sum(len(each["data"]) for each in self.pictures) + len(data) > PICTURES_MAX:
            self.left_out += len(data) * 3 // 4
        else:
            self.pictures.append({"type": "image", "data": data, "mimeType": mime})


def text_block(text: str) -> Json:
    """Return a content block with a text."""
    return {"type": "text", "text": text}


def of_data(line: str, data: Json, text: str | None = None) -> Json:
    """Return a result: one line for the model, the data as text, and the data.

    Args:
        line: what happened.
        data: the structured content.
        text: text in place of the data as JSON.
    """
    told = exact_json.dumps(data).decode() if text is None else text
    return {"content": [text_block(line), text_block(told)], "structuredContent": data}


def of_failure(error: SessionError, **known: Any) -> Json:
    """Return the result of a call that was refused, or that has failed."""
    told = {"name": error.name, "message": error.message, "code": error.code, "resolution": error.resolution}
    text = f"{error.code} {error.name}: {error.message}\n{error.resolution}"
    return {"content": [text_block(text)], "structuredContent": known | {"error": told}, "isError": True}


def of_running(session: str, run: str, seconds: float) -> Json:
    """Return the result of a call whose code goes on."""
    line = (
        f"[session {session}: still running after {seconds:.0f} s] "
        f'The code goes on. Call wait with run "{run}" to get its result; do not send the code again.'
    )
    data = {"session": session, "status": "running", "run": run, "text": "", "truncated": False}
    return {"content": [text_block(line)], "structuredContent": data}


def of_run(session: str, run: str, result: ExecutionResult, shown: Shown) -> Json:
    """Return the result of a cell that has ended.

    Args:
        session: name of its session.
        run: handle of its run.
        result: how it ended.
        shown: its outputs.
    """
    reason = f" ({result.state_reason})" if result.state_reason else ""
    replayed = "; this is the result of the earlier, same call" if result.replayed else ""
    lines = [f"[session {session}: state {result.state.value}{reason}, status {result.status.value}{replayed}]"]
    error = shown.error
    if result.error is not None:
        lines.append(f"{result.error.code}: {result.error.message} {result.error.resolution}")
        failed = result.error
        error = {"name": failed.name, "message": failed.message, "code": failed.code, "resolution": failed.resolution}
    whole = shown.text
    text = shortened(whole, TEXT_MAX)
    if result.omitted:
        lines.append(f"{result.omitted} bytes of output were left out: print less, or write to a file.")
    if shown.left_out:
        lines.append(f"{shown.left_out} bytes of pictures are left out: save them to files, and read those in parts.")
    lines += shown.notes
    data: Json = {
        "session": session,
        "state": result.state.value,
        "status": result.status.value,
        "run": run,
        "text": text,
        "truncated": result.truncated or len(text) < len(whole) or shown.left_out > 0,
    }
    optional = {
        "state_reason": result.state_reason,
        "result": shown.result,
        "error": error,
        "files": shown.files or None,
    }
    data |= {name: value for name, value in optional.items() if value is not None}
    content = [text_block("\n".join(lines))]
    if text:
        content.append(text_block(text))
    answer: Json = {"content": content + shown.pictures, "structuredContent": data}
    return answer if result.status is Status.OK else answer | {"isError": True}
