"""Runs a program in a sandbox with the tool `kernel_image/attached.py`. Its input and output pass as they happen."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from kernel_image.protocol import ATTACHED_TOOL
from sessions.guest.paths import directory_path
from sessions.guest.processes import REQUEST_MAX
from sessions.guest.tools import ToolRunner, lines_of
from sessions.model import bounded_json
from sessions.model.errors import ConnectionFailed, FileNotFound, InvalidRequest
from sessions.model.values import NOT_PASSED

#: maximum bytes of a line of the tool, which holds a piece of 64 KiB in base64
LINE_MAX = 128 * 1024
#: outputs of a program; one with a terminal has only `pty`
STREAMS = frozenset({"stdout", "stderr", "pty"})
#: most columns or rows of a terminal. Source: ioctl_tty(2), struct winsize
SIZE_MAX = 65_535
#: line that ends the program's input
CLOSE = b'{"close":true}\n'


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run."""

    argv: tuple[str, ...]
    #: directory to start in, as processes in the sandbox write it
    cwd: str = ""
    #: variables besides the sandbox's own
    env: Mapping[str, str] | None = None
    #: whether the program gets input; otherwise its input is empty
    takes_input: bool = False
    #: columns and rows of its terminal. None means no terminal.
    size: tuple[int, int] | None = None
    #: seconds after which the program is ended, at most those of any command. None means as long as any command.
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The program has begun."""

    pid: int


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of output."""

    #: one of `STREAMS`
    stream: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The program has ended."""

    #: exit code, or the negative number of the signal that has ended the program
    code: int
    #: whether the program was ended because it ran too long
    timed_out: bool


ProgramEvent = Started | Data | Ended


def data_line(content: bytes) -> bytes:
    """Return the line that gives the program more input."""
    return orjson.dumps({"data": base64.b64encode(content).decode()}) + b"\n"


def size_line(size: tuple[int, int]) -> bytes:
    """Return the line that changes the size of the program's terminal."""
    return orjson.dumps({"size": size}) + b"\n"


async def attach(
    runner: ToolRunner, program: Program, env: Mapping[str, str], seconds: float, lines: AsyncIterable[bytes]
) -> AsyncGenerator[ProgramEvent, None]:
    """Run a program, and yield its start, its output and its end. Closing the generator ends the program.

    Args:
        runner: sandbox that runs the program.
        program: the program.
        env: the sandbox's own variables.
        seconds: timeout in seconds.
        lines: input of the program, as lines of `data_line`, `size_line` and `CLOSE`.

    Raises:
        FileNotFound: when the program's directory does not exist.
        InvalidRequest: when the directory is no text, or the program is no text, too long, or cannot be run.
        ConnectionFailed: when the sandbox has ended, or gives no valid answer.
    """
    if not any(program.argv[:1]) or any(NOT_PASSED.search(word) for word in program.argv):
        raise InvalidRequest("the command is empty, or contains a NUL or a lone surrogate", field="command")
    request = orjson.dumps(
        {
            "argv": program.argv,
            "cwd": directory_path(program.cwd),
            "env": {**env, **(program.env or {})},
            "stdin": program.takes_input,
            "size": program.size,
            "timeout": seconds,
        }
    )
    if len(request) > REQUEST_MAX:
        raise InvalidRequest(f"command and env may have at most {REQUEST_MAX} bytes as JSON", field="command")
    async with aclosing(runner.run_tool(ATTACHED_TOOL, request.decode(), lines)) as output:
        async for line in lines_of(output, LINE_MAX):
            if (event := _event(line)) is not None:
                yield event
            if isinstance(event, Ended):
                return
    raise ConnectionFailed("the sandbox ended while the command ran")


def _event(line: bytes) -> ProgramEvent | None:
    """Parse a line of the tool. None means that the line only shows that the tool is alive."""
    try:
        said = bounded_json.loads(line)
        match said:
            case {"pid": int(pid)} if pid > 0:
                return Started(pid)
            case {"code": int(code), "timed_out": bool(timed_out)} if abs(code) < 1 << 31:
                return Ended(code, timed_out)
            case {"error": "directory"}:
                raise FileNotFound("there is no such directory to run in")
            case {"error": _}:
                raise InvalidRequest("the command cannot be run", field="command")
            case {}:
                for stream in STREAMS & said.keys():
                    return Data(stream, base64.b64decode(said[stream], validate=True))
                return None
    except (ValueError, TypeError):
        pass
    raise ConnectionFailed("the sandbox gave no valid answer")
