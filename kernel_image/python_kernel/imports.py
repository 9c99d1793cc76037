"""Delays imports of modules that a kernel's libraries import but a kernel hardly needs.

In gVisor importing a module costs as much as ten without gVisor, and an extension as much as a hundred.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


def lean() -> None:
    """Import libraries with stand-ins for modules they hardly need. Later imports by cells get the complete modules."""
    sys.modules["curses"] = None  # type: ignore[assignment]  # tornado would use it to colour its log
    importlib.import_module("tornado.log")
    sys.modules["dateutil"] = ModuleType("dateutil")  # a kernel leaves dates as text
    late("dateutil.parser", "isoparse")
    late("dateutil.tz", "tzlocal")
    importlib.import_module("jupyter_client.jsonutil")
    for name in ("curses", "dateutil", "dateutil.parser", "dateutil.tz"):
        del sys.modules[name]


def late(module: str, function: str) -> None:
    """Put a stand-in in a module's place; it imports the module when its function is called.

    Args:
        module: full name of the module.
        function: name of the only function that is needed.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args)

    sys.modules[module] = ModuleType(module)
    setattr(sys.modules[module], function, call)
