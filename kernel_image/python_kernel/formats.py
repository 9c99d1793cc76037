"""Further forms of what cells display: the data of a table, the chart in a figure, and JSON of plain lists and dicts.

E2B's clients read them. Their form is that of E2B's own server (`e2b-dev/code-interpreter`, read in November 2026); the
package `e2b_charts`, which that server uses, reads figures.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any

import orjson
from IPython.core.formatters import BaseFormatter, JSONFormatter
from traitlets import ObjectName, Unicode

_PLAIN = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class DataFormatter(BaseFormatter):
    """A DataFrame of pandas as an object with a list of values for each column; times are in ISO 8601."""

    format_type = Unicode("application/vnd.kernel-gateway.data+json")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict

    def __call__(self, obj: Any) -> Any:
        """Return the data, or None."""
        pandas = sys.modules.get("pandas")  # no cell should pay for its import that has no table
        if pandas is None or not isinstance(obj, pandas.DataFrame):
            return super().__call__(obj)
        return orjson.loads(orjson.dumps(obj.to_dict(orient="list"), default=_told, option=_PLAIN))


class ChartFormatter(BaseFormatter):
    """A figure of matplotlib as a description of its chart; empty if there is none, or it cannot be read."""

    format_type = Unicode("application/vnd.kernel-gateway.chart+json")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def __call__(self, obj: Any) -> Any:
        """Return the chart, or None."""
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(obj, figure.Figure):
            return super().__call__(obj)
        from e2b_charts import chart_figure_to_dict  # noqa: PLC0415 - it takes half a second

        try:
            with warnings.catch_warnings(action="ignore"):  # about types of numbers, in the cell's own output
                return orjson.loads(orjson.dumps(chart_figure_to_dict(obj), default=_told, option=_PLAIN))
        except Exception:  # noqa: BLE001 - a chart that cannot be read must not take the picture away
            return {}


class PlainFormatter(JSONFormatter):
    """A list or dict as JSON, if it can be JSON."""

    def __call__(self, obj: Any) -> Any:
        """Return the value with its metadata, or what else there is as JSON."""
        if isinstance(obj, list | dict):
            try:
                return orjson.loads(orjson.dumps(obj, option=_PLAIN)), {"expanded": True}
            except TypeError:
                return None
        return super().__call__(obj)


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
