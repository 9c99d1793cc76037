"""When a kernel imports modules: some later than its libraries do, because it hardly needs them, some ahead of need.

In gVisor importing a module costs as much as ten without gVisor, and an extension as much as a hundred.
"""

import gc
import importlib
import sys
from types import ModuleType
from typing import Any

from . import bundle, fonts

#: the last module that a plot needs
PLOTS = "matplotlib.backends.backend_agg"


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


def ahead(module: str) -> str:
    """Import a module before a cell asks for it. No cell sees a new name.

    Args:
        module: full name of the module.

    Returns:
        why it could not be imported; empty: it was imported.
    """
    bundle.use(bundle.AHEAD)  # before all other places: no cell has put modules of its own anywhere yet
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


def settle() -> None:
    """Take what has been imported out of Python's garbage collection: it stays, and there is a lot of it.

    What a later `gc.get_objects` returns does not contain it.
    """
    gc.collect()
    gc.freeze()
