"""What a kernel's libraries import and a kernel hardly needs is imported when somebody does need it.

In gVisor a module costs what ten cost without, an extension what a hundred do.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


def lean() -> None:
    """Import what would import more than it needs. What a cell imports later is whole, as ever."""
    sys.modules["curses"] = None  # type: ignore[assignment]  # tornado would colour its log with it
    importlib.import_module("tornado.log")
    sys.modules["dateutil"] = ModuleType("dateutil")  # a kernel leaves dates what they are, text
    late("dateutil.parser", "isoparse")
    late("dateutil.tz", "tzlocal")
    importlib.import_module("jupyter_client.jsonutil")
    for name in ("curses", "dateutil", "dateutil.parser", "dateutil.tz"):
        del sys.modules[name]


def late(module: str, function: str) -> None:
    """Put something in a module's place that imports it when its function is called.

    Args:
        module: its full name.
        function: all that is wanted of it.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args)

    sys.modules[module] = ModuleType(module)
    setattr(sys.modules[module], function, call)
