"""Further forms of what cells display: data of tables, charts in figures, JSON of lists and dicts, and saved images.

E2B's clients read them. Their form is that of E2B's own server (`e2b-dev/code-interpreter`, read in November 2026); the
package `e2b_charts`, which that server uses, reads figures. Above a bound a further form is left out: it would take
more memory than the value itself, and the message with the usual forms would become too large for its reader.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import orjson
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.display import display
from traitlets import Unicode

SAVED_IMAGES = "application/vnd.kernel-gateway.saved-images"
_PLAIN = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
#: values of a table, list or dict, and numbers of a chart, of which there is a further form
VALUES_MAX = 50_000
#: its bytes; and its lists, objects and keys: the gateway leaves out a whole message that has twice as many
BYTES_MAX = 1024**2
PARTS_MAX = 100_000


class DataFormatter(BaseFormatter):
    """A DataFrame of pandas as an object with a list of values for each column; times are in ISO 8601."""

    format_type = Unicode("application/vnd.kernel-gateway.data+json")

    def __call__(self, obj: Any) -> Any:
        """Return the data; None: it is no table, or a large one, or its columns have names of several levels."""
        pandas = sys.modules.get("pandas")  # no cell should pay for its import that has no table
        if pandas is None or not isinstance(obj, pandas.DataFrame) or obj.size > VALUES_MAX:
            return None
        with warnings.catch_warnings(action="ignore"):  # about columns of one name, in the cell's own output
            return _as_json(obj.to_dict(orient="list"), _told)


class ChartFormatter(BaseFormatter):
    """A figure of matplotlib as a description of its chart; empty if there is none, or it cannot be read."""

    format_type = Unicode("application/vnd.kernel-gateway.chart+json")

    def __call__(self, obj: Any) -> Any:
        """Return the chart; None: it is no figure, or has very many points."""
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(obj, figure.Figure):
            return None
        if _points(obj) > VALUES_MAX // 2:
            return None
        from e2b_charts import chart_figure_to_dict  # noqa: PLC0415 - it takes half a second

        try:
            with warnings.catch_warnings(action="ignore"):  # about types of numbers, in the cell's own output
                return _as_json(chart_figure_to_dict(obj), _told)
        except Exception:  # noqa: BLE001 - a chart that cannot be read must not take the picture away
            return {}


class PlainFormatter(JSONFormatter):
    """A list or dict as JSON, if it can be JSON."""

    def __call__(self, obj: Any) -> Any:
        """Return the value with its metadata, or what else there is as JSON."""
        if not isinstance(obj, list | dict):
            return super().__call__(obj)
        value = _as_json(obj) if len(obj) <= VALUES_MAX else None
        return None if value is None else (value, {"expanded": True})


def _as_json(value: Any, default: Callable[[Any], str | None] | None = None) -> Any:
    """Return a value as JSON holds it; None: JSON cannot hold it, or it is large."""
    try:
        text = orjson.dumps(value, default=default, option=_PLAIN)
    except TypeError:
        return None
    few = len(text) <= BYTES_MAX and sum(map(text.count, (b"[", b"{", b":"))) <= PARTS_MAX
    return orjson.loads(text) if few else None


def _points(figure: Any) -> int:
    """Return the number of points, bars and markers that a figure has."""
    return sum(
        sum(len(line.get_xydata()) for line in axes.lines)
        + sum(len(collection.get_offsets()) for collection in axes.collections)
        + len(axes.patches)
        for axes in figure.axes
    )


def _told(value: Any) -> str | None:
    """Return what is no JSON as text; None: a missing value of pandas."""
    text = str(value.isoformat() if hasattr(value, "isoformat") else value)
    return None if text in {"NaT", "<NA>"} else text


@cache
def formatters(displays: Any) -> dict[str, Any]:
    """Return the formatters by MIME type, made once: it would take 0.15 ms of each cell.

    Args:
        displays: IPython's `DisplayFormatter`.
    """
    return {
        DataFormatter.format_type.default_value: DataFormatter(parent=displays),
        ChartFormatter.format_type.default_value: ChartFormatter(parent=displays),
        "application/json": PlainFormatter(parent=displays),
    }


@contextmanager
def showing_saved_images() -> Iterator[None]:
    """Display each image that Pillow saves under a name, which includes `savefig` of matplotlib."""
    try:
        from PIL import Image  # noqa: PLC0415 - the slim image has no Pillow
    except ImportError:
        yield
        return
    images: Any = Image.Image
    usual = images.save

    @wraps(usual)
    def save(image: Any, fp: Any, *arguments: Any, **options: Any) -> None:
        usual(image, fp, *arguments, **options)
        if isinstance(fp, str):
            display(image)

    images.save = save
    try:
        yield
    finally:
        if images.save is save:  # else the cell has put a function of its own there
            images.save = usual
