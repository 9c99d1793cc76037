"""Makes plots faster in a preloaded kernel: it reads the image's fonts from memory, and draws a figure in advance.

For each plot, FreeType reads a font in about a thousand small pieces. Matplotlib reads each piece from a file with a
buffer of 4 KiB, so most pieces need two system calls. In gVisor these calls were half of a plot's time.
"""

import io
import mmap
import os
import sys
from typing import Any


class MappedFont(mmap.mmap):
    """A font file that is mapped into memory, with the methods that FreeType's reader needs."""

    name: str

    @classmethod
    def of(cls, path: str) -> "MappedFont":
        """Map a file.

        Raises:
            OSError: when the file cannot be read.
            ValueError: when the file is empty.
        """
        with open(path, "rb") as file:
            font = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        font.name = path
        return font


def map_fonts() -> None:
    """Let matplotlib read fonts from memory from now on. Without matplotlib, and in a second call, nothing changes.

    A font file that this process may write is not mapped: if the file became shorter, reading the missing part would
    kill the process.
    """
    module: Any = sys.modules.get("matplotlib.ft2font")
    # The class of matplotlib before 3.10 cannot be changed.
    if module is None or type(module.FT2Font) is type or hasattr(module.FT2Font.__init__, "opens"):
        return
    kind = module.FT2Font
    opens, name_of = kind.__init__, kind.fname.fget

    def __init__(self: Any, filename: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - becomes a method of that class
        mapped = isinstance(filename, str) and not os.access(filename, os.W_OK)
        opens(self, MappedFont.of(filename) if mapped else filename, *args, **options)

    def fname(self: Any) -> Any:
        """Return the font's path, or the file object that the font was read from."""
        source = name_of(self)
        return source.name if isinstance(source, MappedFont) else source

    __init__.opens = opens  # type: ignore[attr-defined]
    kind.__init__, kind.fname = __init__, property(fname)


def draw_once() -> None:
    """Draw a figure that nobody sees. It opens the fonts and imports the modules that write a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only where it is preloaded
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure()  # not through pyplot, which counts figures and chooses a backend
    FigureCanvasAgg(figure)
    figure.subplots().plot([0, 1])
    figure.savefig(io.BytesIO(), bbox_inches="tight")  # like a notebook
