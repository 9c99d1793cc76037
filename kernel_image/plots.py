"""Prepares matplotlib when an image is built: adds a font for Chinese, Japanese and Korean, and lists the fonts.

Matplotlib makes its list of all fonts at the first plot, in a directory that is empty for every new kernel. This
program makes the list once, and `launcher.py` links it into each kernel's private directory. An image with more fonts
runs this program again:

    python plots.py
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

#: font for Chinese, Japanese and Korean, whose characters matplotlib's own font lacks
FALLBACK = "WenQuanYi Micro Hei"
#: weight of bold text. Source: CSS
BOLD = 700
#: files that each kernel finds in its private directory
HOME = Path(__file__).parent / "home"


def main() -> None:
    """Add the font to matplotlib's own settings, and write the list of fonts."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    shutil.rmtree(HOME, ignore_errors=True)  # an earlier list lacks newer fonts
    os.environ["MPLCONFIGDIR"] = str(HOME / ".cache/matplotlib")  # noqa: TID251 - matplotlib has no other way
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    settings = Path(mpl.get_data_path(), "matplotlibrc")
    # The line looks like a comment, but matplotlib reads the comments of this file as its defaults.
    line = f"#font.family:  sans-serif, {FALLBACK}"
    content, found = re.subn(r"^#font\.family:.*$", line, settings.read_text("utf-8"), flags=re.MULTILINE)
    if found != 1:
        raise SystemExit(f"{settings} has {found} lines for font.family")
    settings.write_text(content, "utf-8")
    from matplotlib import font_manager  # noqa: PLC0415 - it makes the list when it is imported

    fonts: Any = font_manager.fontManager
    known = [font for font in fonts.ttflist if font.name == FALLBACK]
    # The font has only one weight. Matplotlib would warn of that for each bold text, even in the Latin alphabet.
    fonts.ttflist += [replace(font, weight=BOLD) for font in known if font.weight != BOLD]
    font_manager.json_dump(fonts, Path(mpl.get_cachedir(), f"fontlist-v{fonts.__version__}.json"))
    if not known:
        raise SystemExit(f"the font {FALLBACK} is not installed")


if __name__ == "__main__":
    main()
