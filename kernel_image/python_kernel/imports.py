"""Delays imports of modules that a kernel hardly needs, and imports other modules ahead of need.

In gVisor, importing a module takes ten times as long as without gVisor, and importing an extension a hundred times.
"""

import gc
import importlib
import sys
from types import ModuleType
from typing import Any

from . import bundle, fonts

#: the last one of the modules that a plot needs
PLOTS = "matplotlib.backends.backend_agg"


def lean() -> None:
    """Import libraries with stand-ins for modules that they hardly need. Cells import the complete modules later."""
    sys.modules["curses"] = None  # type: ignore[assignment]  # tornado would use it to colour its log
    importlib.import_module("tornado.log")
    sys.modules["dateutil"] = ModuleType("dateutil")  # a kernel leaves dates as text
    late("dateutil.parser", "isoparse")
    late("dateutil.tz", "tzlocal")
    importlib.import_module("jupyter_client.jsonutil")
    for name in ("curses", "dateutil", "dateutil.parser", "dateutil.tz"):
        del sys.modules[name]


def late(module: str, function: str) -> None:
    """Replace a module by a stand-in, which imports the module when its function is called.

    Args:
        module: full name of the module.
        function: name of the only function of the stand-in.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args)

    sys.modules[module] = ModuleType(module)
    setattr(sys.modules[module], function, call)


def ahead(module: str) -> str:
    """Import a module before a cell needs it. The module's name is not defined for cells.

    Args:
        module: full name of the module.

    Returns:
        the reason why the module could not be imported, or an empty text after a success.
    """
    bundle.use(bundle.AHEAD)  # the bundle may come first, because no cell has made modules of its own yet
    try:
        importlib.import_module(module)
        fonts.map_fonts()
        if module == PLOTS:
            fonts.draw_once()
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, and the kernel must survive it
        return f"{type(error).__name__}: {error}"
    finally:
        bundle.release()
    return ""


def freeze() -> None:
    """Exclude all current objects from Python's garbage collection, because imported modules are many and stay.

    Later results of `gc.get_objects` do not contain these objects.
    """
    gc.collect()
    gc.freeze()
