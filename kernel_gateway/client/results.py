"""What a cell has shown and how it ended, in forms that programs use."""

from __future__ import annotations

import ast
import re
from base64 import b64decode
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, Self

from kernel_gateway.client.errors import ClientError, GatewayError

if TYPE_CHECKING:
    import pandas as pd  # only `Result.dataframe` needs it, and imports it then

#: colours and other escape sequences of a terminal. Source: ECMA-48
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
Output = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One event of a stream: `started`, `output`, `update_display_data`, `clear_output`, and last `result`."""

    type: str
    #: all fields, as the API describes them
    fields: dict[str, Any]
    #: of the last event: the cell's result
    result: Result | None = None

    @property
    def text(self) -> str:
        """What the event shows, as text; empty if it shows nothing."""
        return text_of(self.fields["output"]) if self.type == "output" else ""


@dataclass(frozen=True)
class Result:
    """The result of a cell.

    `text`, `png`, `value` and `dataframe` look at `outputs`, which are those that a notebook would keep.
    """

    #: ok, error, timeout, interrupted or died
    status: str
    outputs: list[Output] = field(repr=False)
    #: what became of the variables of earlier cells: new, preserved, restarted, rolled_back or lost
    state: str
    state_reason: str | None
    execution_count: int | None
    duration_ms: float
    session_id: str
    incarnation: int
    #: some output was cut off, and how much
    truncated: bool
    omitted_bytes: int
    #: this is the result of an earlier request with the same idempotency key
    replayed: bool
    #: why the cell has status `timeout` or `died`; its code, and what to do
    error: GatewayError | None

    @classmethod
    def of(cls, fields: dict[str, Any], outputs: list[Output]) -> Self:
        """Take the result's event, and the outputs that came before it unless it has all of them itself."""
        names = cls.__dataclass_fields__.keys() - {"outputs", "error"}
        error = None if fields["error"] is None else GatewayError(fields["error"])
        return cls(outputs=fields.get("outputs", outputs), error=error, **{name: fields[name] for name in names})

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded."""
        return self.status == "ok"

    def check(self) -> Self:
        """Return this result if the cell succeeded.

        Raises:
            CellFailed: when it did not.
        """
        if not self.ok:
            raise CellFailed(self)
        return self

    @property
    def text(self) -> str:
        """All that was printed and displayed, and the traceback, as text without colours."""
        return "".join(map(text_of, self.outputs))

    @property
    def error_text(self) -> str | None:
        """Name and message of the exception that ended the cell."""
        errors = [each for each in self.outputs if each["output_type"] == "error"]
        return f"{errors[-1]['ename']}: {errors[-1]['evalue']}" if errors else None

    @property
    def png(self) -> bytes | None:
        """The last picture."""
        return self.pngs[-1] if self.pngs else None

    @property
    def pngs(self) -> list[bytes]:
        """All pictures, in order."""
        return [png for data in self._displays if (png := _decoded(data.get("image/png"))) is not None]

    @property
    def value(self) -> Any:
        """The value of the cell's last expression.

        JSON (of `arguments`), and what Python reads as a literal - numbers, texts, lists, dicts - is the value itself;
        anything else is its text. None: the cell has no value.
        """
        results = [each["data"] for each in self.outputs if each["output_type"] == "execute_result"]
        if not results:
            return None
        if "application/json" in results[-1]:
            return results[-1]["application/json"]
        text = results[-1].get("text/plain")
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text

    @property
    def dataframe(self) -> pd.DataFrame:
        """The last table that the cell displayed, as a pandas data frame: with the rows and digits that are displayed.

        Raises:
            ClientError: when the cell displayed no table, or pandas or lxml is not installed here.
        """
        tables = [html for data in self._displays if "<table" in (html := data.get("text/html") or "")]
        if not tables:
            raise ClientError("the cell displayed no table")
        try:
            import pandas as pd  # noqa: PLC0415 - most clients need no pandas

            [found, *_] = pd.read_html(StringIO(tables[-1]), index_col=0)
        except ImportError as error:
            raise ClientError(f"tables need pandas and lxml, which are not installed here: {error}") from error
        return found

    @property
    def _displays(self) -> list[dict[str, Any]]:
        return [each["data"] for each in self.outputs if "data" in each]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:  # noqa: ARG002
        """Return what a notebook shows: the cell's last display, and all its text."""
        last = self._displays[-1] if self._displays else {}
        return last | {"text/plain": self.text}


class CellFailed(ClientError):
    """A cell did not succeed, and `Result.check` was asked.

    Attributes:
        result: the cell's result, with all outputs.
    """

    def __init__(self, result: Result) -> None:
        """Take the result of a cell that did not succeed."""
        self.result = result
        why = result.error or result.error_text or result.text
        super().__init__(f"the cell ended with {result.status}: {why}")


def _decoded(text: object) -> bytes | None:
    """Return the bytes of base64. None: code has sent something else under its type."""
    try:
        return b64decode("".join(text.split()), validate=True) if isinstance(text, str) else None
    except ValueError:
        return None


def text_of(output: Output) -> str:
    """Return an output as text without colours."""
    match output["output_type"]:
        case "stream":
            return without_escapes(output["text"])
        case "error":
            return without_escapes("\n".join(output["traceback"])) + "\n"
        case _:
            text = output["data"].get("text/plain")
            return f"{text}\n" if isinstance(text, str) else ""


def without_escapes(text: str) -> str:
    """Return a text without escape sequences of a terminal."""
    return _ESCAPE.sub("", text)


class Outputs:
    """The outputs of a cell as its events leave them."""

    def __init__(self) -> None:
        self.all: list[Output] = []
        self._clears = False
        #: display id of each output that has one, by the output's identity
        self._displays: dict[int, str] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Apply one event."""
        match event["type"]:
            case "output":
                self._add(event["output"], event.get("display_id"))
            case "update_display_data":
                for output in self.all:
                    if self._displays.get(id(output)) == event["display_id"]:
                        output.update(data=event["data"], metadata=event["metadata"])
            case "clear_output":
                self._clears = bool(event["wait"])
                if not self._clears:
                    self._clear()

    def _clear(self) -> None:
        self.all, self._displays, self._clears = [], {}, False

    def _add(self, output: Output, display_id: str | None) -> None:
        if self._clears:
            self._clear()
        last = self.all[-1] if self.all else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
            return
        self.all.append(dict(output))
        if display_id:
            self._displays[id(self.all[-1])] = display_id
