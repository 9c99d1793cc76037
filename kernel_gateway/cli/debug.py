"""`kernel-gateway debug`: run a cell under the debugger, or look at the exception that has ended one.

The commands of the prompt are those of Python's own debugger, pdb.
"""

from __future__ import annotations

import argparse
import ast
import cmd
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

from kernel_gateway.cli.client_command import add_code, add_examples, add_session, code_of, problem
from kernel_gateway.cli.flags import client_from
from kernel_gateway.cli.remote import Failed, Remote, path_of, told
from kernel_gateway.cli.run import EXIT, print_end, session_of, show_output
from kernel_gateway.cli.variables import shown
from kernel_gateway.client import ClientError, Event, GatewayError, Session

#: lines of code that `list` shows before and after the present one
AROUND = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_code(parser, file="a file with the code; without code, the session's last exception is looked at (post mortem)")
    parser.add_argument(
        "-b",
        "--breakpoint",
        action="append",
        type=_place,
        default=[],
        metavar="LINE[,CONDITION]",
        help="stop at this line, if the condition is true there; without this flag at the first line",
    )
    parser.add_argument(
        "-e",
        "--exceptions",
        choices=["uncaught", "raised"],
        help="stop where an exception leaves the code, or where one is raised at all; and at no first line",
    )
    parser.add_argument("-t", "--timeout", type=float, help="seconds the cell may run, without those that it stands")
    add_session(parser)
    add_examples(
        parser,
        "kernel-gateway debug -s demo train.py",
        "kernel-gateway debug -s demo -b 12 -b '20,loss is None' train.py",
        "kernel-gateway debug -s demo -e uncaught -c 'total(rows)'",
        "kernel-gateway debug -s demo",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the code until it stops, and read commands; Ctrl-C stops it where it is, and `quit` or Ctrl-D ends it.

    Returns:
        0 when the code succeeded, or an exception was looked at; 2 when the debugger or the gateway refused it; else
        how the cell ended, as `kernel-gateway run`: 1 error, 3 timeout, 4 interrupted, 5 died.
    """
    client = client_from(arguments)
    try:
        code = code_of(arguments)
        with session_of(client, arguments.session) as session:
            prompt = Prompt(session, Remote(client), code or "")
            if code is None:
                return prompt.post_mortem()
            return prompt.launch(arguments.breakpoint, arguments.exceptions, arguments.timeout)
    except GatewayError as refusal:
        print(f"kernel-gateway: {told(refusal)}", file=sys.stderr)
    except (Failed, ClientError, OSError, ValueError) as error:
        print(f"kernel-gateway: {problem(error)}", file=sys.stderr)
    return 2


def _place(text: str) -> dict[str, Any]:
    """Return the breakpoint that `LINE` or `LINE,CONDITION` names.

    Raises:
        ValueError: when the line is no number.
    """
    line, _, condition = text.partition(",")
    return {"line": int(line)} | ({"condition": condition.strip()} if condition.strip() else {})


def _first_line(code: str) -> int:
    """Return the line of the first statement; a cell that Python alone cannot read has a magic there."""
    with suppress(SyntaxError, ValueError):
        statements = ast.parse(code).body
        return statements[0].lineno if statements else 1
    return 1


@contextmanager
def _on_ctrl_c(act: Callable[[], None]) -> Iterator[None]:
    """Call a function in a thread at each Ctrl-C. The main thread goes on to wait for the cell's next event."""
    pressed: SimpleQueue[int | None] = SimpleQueue()

    def heed() -> None:
        for _ in iter(pressed.get, None):
            act()

    thread = Thread(target=heed)
    former = signal.signal(signal.SIGINT, lambda number, _frame: pressed.put(number))
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        pressed.put(None)
        thread.join()


class Prompt(cmd.Cmd):
    """Reads the commands of a user. The name of each is that of its method, without `do_`."""

    prompt = "(debug) "
    doc_header = "Commands (`help NAME` explains one); anything else is evaluated in the frame:"

    def __init__(self, session: Session, remote: Remote, code: str) -> None:
        """Debug nothing yet."""
        super().__init__()
        self._session = session
        self._remote = remote
        self._lines = code.splitlines()
        self._places: dict[int, dict[str, Any]] = {}
        #: events of the cell that were not read yet
        self._events: Iterator[Event] = iter(())
        #: whether the cell's turn has come
        self._started = False
        #: what the debugger has told last
        self._seen: dict[str, Any] = {}
        self._frame = 0
        self._status = "ok"

    def launch(self, places: list[dict[str, Any]], exceptions: str | None, timeout: float | None) -> int:
        """Run the cell, read commands until it ends, and return the exit code."""
        if not places and exceptions is None:
            places = [{"line": _first_line("\n".join(self._lines))}]
        self._places = {place["line"]: place for place in places}
        plan = {"breakpoints": places, "exceptions": [] if exceptions is None else [exceptions]}
        stream = self._session.stream("\n".join(self._lines) + "\n", timeout=timeout, debug=plan)
        with closing(stream) as self._events:  # its end interrupts the cell, if it still runs
            if not self._until_stop():
                self._read()
        return EXIT[self._status]

    def post_mortem(self) -> int:
        """Read commands about the session's last exception, and return the exit code."""
        self._seen = self._session.debug("variables")
        if self._seen["state"] not in {"post_mortem", "stopped"}:
            raise Failed("no exception has ended a cell of this session; to run code, name a file, or use -c")
        print(shown(self._seen["description"] or ""))
        self._print_frame()
        self._read()
        return 0

    def _read(self) -> None:
        while True:
            try:
                self.cmdloop()
            except KeyboardInterrupt:  # the line is dropped, as in other prompts
                print()
                continue
            return

    def onecmd(self, line: str) -> bool:
        """Do one command. A refusal is printed, and ends nothing."""
        try:
            return bool(super().onecmd(line))
        except GatewayError as refusal:
            print(f"*** {shown(told(refusal))}")
            return False

    # -- how the cell goes on ---------------------------------------------------------------------------------

    def _go(self, command: str) -> bool:
        """Go on until the cell stops or ends, and return whether it has ended."""
        self._session.debug(command, within=0)
        return self._until_stop()

    def _until_stop(self) -> bool:
        """Print what the cell shows until it stops or ends, and return whether it has ended. Ctrl-C stops it."""
        ended, stands = False, False
        with _on_ctrl_c(self._pause):
            while not ended and not stands:
                ended = self._print_outputs()
                self._seen = self._session.debug("wait", within=0)
                stands = self._seen["state"] == "stopped"  # else another client has gone on meanwhile
        self._frame = 0
        for text in self._seen["log"]:
            print(shown(text.rstrip("\n")))
        if ended:
            print(f"[{self._status}]")
            return True
        if self._seen["reason"] == "exception":
            print(shown(self._seen["description"] or "an exception"))
        self._print_frame()
        return False

    def _print_outputs(self) -> bool:
        """Print the cell's outputs as they come until it stops or ends, and return whether it has ended."""
        for event in self._events:
            match event.type:
                case "started":
                    self._started = True
                case "output":
                    show_output(event.fields["output"])
                case "stopped":
                    return False
                case "result" if event.result is not None:
                    self._status = event.result.status
                    print_end(event.result, event.fields.get("outputs", []), None)
        return True

    def _pause(self) -> None:
        """Stop the cell where it is; a cell that waits for its turn is ended. The stream tells what has come of it."""
        asked = {"command": "pause" if self._started else "terminate", "within": 0}
        with suppress(Failed):  # it has stopped or ended meanwhile
            self._remote.json("POST", f"{path_of(self._session.name)}/debug", asked)

    def do_next(self, _argument: str) -> bool:
        """Run this line, and stop at the next one of this function. Short: n."""
        return self._go("next")

    def do_step(self, _argument: str) -> bool:
        """Run until the next line, also in a function that this line calls. Short: s."""
        return self._go("stepIn")

    def do_return(self, _argument: str) -> bool:
        """Run until this function returns. Short: r."""
        return self._go("stepOut")

    def do_continue(self, _argument: str) -> bool:
        """Run until the next breakpoint. Short: c."""
        return self._go("continue")

    def do_quit(self, _argument: str) -> bool:
        """End the cell like an interrupt, and this command; the variables stay. Short: q, or Ctrl-D."""
        if self._seen["state"] == "stopped":
            with suppress(GatewayError):  # it has ended meanwhile
                self._session.debug("terminate")
            for event in self._events:
                self._status = event.result.status if event.result else self._status
        return True

    # -- where it stops ---------------------------------------------------------------------------------------

    def do_break(self, argument: str) -> None:
        """Stop at a line, if a condition is true there: break LINE[,CONDITION]. Without a line: list them. Short: b."""
        if argument:
            try:
                place = _place(argument)
            except ValueError:
                print("*** break LINE[,CONDITION]")
                return
            self._set(self._places | {place["line"]: place})
        for place in self._places.values():
            print(f"line {place['line']}" + (f" if {place['condition']}" if "condition" in place else ""))

    def do_clear(self, argument: str) -> None:
        """Take the breakpoint of a line away, or all of them: clear [LINE]. Short: cl."""
        self._set({line: place for line, place in self._places.items() if argument and argument != str(line)})

    def _set(self, places: dict[int, dict[str, Any]]) -> None:
        self._session.debug("setBreakpoints", breakpoints=list(places.values()))
        self._places = places

    # -- looking around ---------------------------------------------------------------------------------------

    def do_where(self, _argument: str) -> None:
        """Print the frames, the innermost last. Short: w."""
        for frame in reversed(self._seen["frames"]):
            mark = ">" if frame["frameId"] == self._frame else " "
            print(f"{mark} {shown(frame['name'])}, {shown(frame['source'])}, line {frame['line']}")
            if frame["text"]:
                print(f"  -> {shown(frame['text'])}")

    def do_up(self, _argument: str) -> None:
        """Look at the frame that has called this one. Short: u."""
        self._look(self._frame + 1)

    def do_down(self, _argument: str) -> None:
        """Look at the frame that this one has called. Short: d."""
        self._look(self._frame - 1)

    def _look(self, frame: int) -> None:
        if not 0 <= frame < len(self._seen["frames"]):
            print("*** there is no such frame")
            return
        self._frame = frame
        self._print_frame()

    def _print_frame(self) -> None:
        if self._frame < len(self._seen["frames"]):
            frame = self._seen["frames"][self._frame]
            print(f"> {shown(frame['name'])}, {shown(frame['source'])}, line {frame['line']}")
            print(f"-> {shown(frame['text'])}")

    def do_list(self, _argument: str) -> None:
        """Print the code around the present line. Short: l."""
        frame = self._seen["frames"][self._frame]
        if frame["source"] != "this cell" or not self._lines:
            self._print_frame()
            return
        first = max(1, frame["line"] - AROUND)
        for number, line in enumerate(self._lines[first - 1 : frame["line"] + AROUND], first):
            marks = ("B" if number in self._places else " ") + ("->" if number == frame["line"] else "  ")
            print(f"{number:4} {marks} {line}")

    def do_vars(self, _argument: str) -> None:
        """Print the local variables of this frame. Short: v."""
        for each in self._session.debug("variables", frameId=self._frame)["variables"] or ():
            print(f"{shown(each['name'])} = {shown(each['value'])}")

    def do_print(self, argument: str) -> None:
        """Print the value of an expression in this frame: print EXPRESSION. Short: p."""
        self.default(argument)

    def default(self, line: str) -> None:
        """Evaluate what is no command in this frame. Statements run, too."""
        value = self._session.debug("evaluate", expression=line, frameId=self._frame)["value"]["value"]
        print(*map(shown, value.splitlines()), sep="\n") if value else None

    do_n, do_s, do_r, do_c, do_q = do_next, do_step, do_return, do_continue, do_quit
    do_b, do_cl, do_w, do_u, do_d = do_break, do_clear, do_where, do_up, do_down
    do_l, do_v, do_p, do_EOF = do_list, do_vars, do_print, do_quit  # noqa: N815 - the name for Ctrl-D
