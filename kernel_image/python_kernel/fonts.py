"""What a preloaded kernel does for plots: it reads the image's fonts from memory, and has drawn one figure.

FreeType reads a font in some thousand small pieces for each plot. Matplotlib reads each piece from a file, whose buffer
has 4 KiB, so most pieces cost two system calls. In gVisor these were half of a plot's time.
"""

import io
import mmap
import os
import sys
from typing import Any


class MappedFont(mmap.mmap):
    """A font file in memory, with the methods that FreeType's reader needs."""

    name: str

    @classmethod
    def of(cls, path: str) -> "MappedFont":
        """Map a file.

        Raises:
            OSError: when the file cannot be read.
            ValueError: when it is empty.
        """
        with open(path, "rb") as file:
            font = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        font.name = path
        return font


def map_fonts() -> None:
    """Let matplotlib's fonts be read from memory from now on; idempotent, and nothing without matplotlib.

    A font that this process may write is still read from its file: a process ends when it reads a part of a mapped
    file that was cut off meanwhile.
    """
    module: Any = sys.modules.get("matplotlib.ft2font")
    # The type of matplotlib before 3.10 cannot be changed.
    if module is None or type(module.FT2Font) is type or hasattr(module.FT2Font.__init__, "opens"):
        return
    kind = module.FT2Font
    opens, name_of = kind.__init__, kind.fname.fget

    def __init__(self: Any, filename: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - of that type
        mapped = isinstance(filename, str) and not os.access(filename, os.W_OK)
        opens(self, MappedFont.of(filename) if mapped else filename, *args, **options)

    def fname(self: Any) -> Any:
        """Return the font's path, or the file object that it was made of."""
        source = name_of(self)
        return source.name if isinstance(source, MappedFont) else source

    __init__.opens = opens  # type: ignore[attr-defined]
    kind.__init__, kind.fname = __init__, property(fname)


def draw_once() -> None:
    """Draw a figure that nobody sees: a first plot finds the fonts open, and what writes a PNG imported."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only where it is preloaded
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure()  # not pyplot's, which counts its figures and chooses a backend
    FigureCanvasAgg(figure)
    figure.subplots().plot([0, 1])
    figure.savefig(io.BytesIO(), bbox_inches="tight")  # as a notebook does
