"""Additional formats for displays: data of tables, charts in figures, JSON of lists and dicts, and saved images.

E2B's clients read these formats, which are those of E2B's own server (`e2b-dev/code-interpreter`, read in November
2026); like that server, this module reads figures with the package `e2b_charts`. A large value gets no additional
format: it would take more memory than the value itself, and the message could become too large for its reader.
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
#: maximum values of a table, list or dict, and maximum numbers of a chart, for an additional format
VALUES_MAX = 50_000
#: maximum bytes of an additional format, and maximum number of its lists, objects and keys together. The gateway drops
#: a message with twice as many
BYTES_MAX = 1024**2
PARTS_MAX = 100_000


class DataFormatter(BaseFormatter):
    """Formats a pandas DataFrame as an object with a list of values for each column. Times are in ISO 8601."""

    format_type = Unicode("application/vnd.kernel-gateway.data+json")

    def __call__(self, obj: Any) -> Any:
        """Return the data, or None if the value is no table, is too large, or has column names of several levels."""
        pandas = sys.modules.get("pandas")  # not imported here: most cells have no table
        if pandas is None or not isinstance(obj, pandas.DataFrame) or obj.size > VALUES_MAX:
            return None
        with warnings.catch_warnings(action="ignore"):  # pandas warns of columns with the same name
            return _as_json(obj.to_dict(orient="list"), _told)


class ChartFormatter(BaseFormatter):
    """Formats a matplotlib figure as a description of its chart. If the chart cannot be read, this is empty."""

    format_type = Unicode("application/vnd.kernel-gateway.chart+json")

    def __call__(self, obj: Any) -> Any:
        """Return the chart, or None if the value is no figure, or has too many points."""
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(obj, figure.Figure):
            return None
        if _points(obj) > VALUES_MAX // 2:
            return None
        from e2b_charts import chart_figure_to_dict  # noqa: PLC0415 - it takes half a second

        try:
            with warnings.catch_warnings(action="ignore"):  # the package warns of some types of numbers
                return _as_json(chart_figure_to_dict(obj), _told)
        except Exception:  # noqa: BLE001 - the picture must be shown even if its chart cannot be read
            return {}


class PlainFormatter(JSONFormatter):
    """Formats a list or dict as JSON, if that is possible."""

    def __call__(self, obj: Any) -> Any:
        """Return a list or dict with its metadata. Other values have JSON only if they define it themselves."""
        if not isinstance(obj, list | dict):
            return super().__call__(obj)
        value = _as_json(obj) if len(obj) <= VALUES_MAX else None
        return None if value is None else (value, {"expanded": True})


def _as_json(value: Any, default: Callable[[Any], str | None] | None = None) -> Any:
    """Return a value as JSON's types, or None if that is impossible or the value is too large."""
    try:
        text = orjson.dumps(value, default=default, option=_PLAIN)
    except TypeError:
        return None
    few = len(text) <= BYTES_MAX and sum(map(text.count, (b"[", b"{", b":"))) <= PARTS_MAX
    return orjson.loads(text) if few else None


def _points(figure: Any) -> int:
    """Return the number of points, bars and markers of a figure."""
    return sum(
        sum(len(line.get_xydata()) for line in axes.lines)
        + sum(len(collection.get_offsets()) for collection in axes.collections)
        + len(axes.patches)
        for axes in figure.axes
    )


def _told(value: Any) -> str | None:
    """Return a value that JSON does not have as text, or None for a missing value of pandas."""
    text = str(value.isoformat() if hasattr(value, "isoformat") else value)
    return None if text in {"NaT", "<NA>"} else text


@cache
def formatters(displays: Any) -> dict[str, Any]:
    """Return the formatters by MIME type. They are made only once, because that takes 0.15 ms.

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
        if images.save is save:  # otherwise the cell has replaced the function itself
            images.save = usual
