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

#: fonts for characters that those before lack: Chinese, Japanese and Korean; emoji; newer emoji; all others
FALLBACKS = ("WenQuanYi Micro Hei", "Symbola", "Unifont Upper", "Unifont")
#: weight of bold text. Source: CSS
BOLD = 700
#: files that each kernel finds in its private directory
HOME = Path(__file__).parent / "home"


def main() -> None:
    """Name the fonts in matplotlib's own settings, and write the list of fonts.

    Raises:
        SystemExit: when none of the fonts is installed, or matplotlib's settings do not look as expected.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return
    shutil.rmtree(HOME, ignore_errors=True)  # an earlier list lacks newer fonts
    os.environ["MPLCONFIGDIR"] = str(HOME / ".cache/matplotlib")  # noqa: TID251 - matplotlib has no other way
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed
    from matplotlib import font_manager  # noqa: PLC0415 - it makes the list when it is imported

    fonts: Any = font_manager.fontManager
    known = [font for font in fonts.ttflist if font.name in FALLBACKS]
    if not known:
        raise SystemExit(f"none of these fonts is installed: {', '.join(FALLBACKS)}")
    # They have only one weight. Matplotlib would warn of that at each bold text, also at one in the Latin alphabet.
    fonts.ttflist += [replace(font, weight=BOLD) for font in known if font.weight != BOLD]
    font_manager.json_dump(fonts, Path(mpl.get_cachedir(), f"fontlist-v{fonts.__version__}.json"))
    installed = {font.name for font in known}
    _set_family(Path(mpl.get_data_path(), "matplotlibrc"), [name for name in FALLBACKS if name in installed])


def _set_family(settings: Path, fallbacks: list[str]) -> None:
    """Let text have these fonts behind the usual one. A font that is not installed would be a warning at each text."""
    # The line is a comment that states the default. Matplotlib reads the file's comments as its defaults.
    line = f"#font.family:  {', '.join(['sans-serif', *fallbacks])}"
    content, found = re.subn(r"^#font\.family:.*$", line, settings.read_text("utf-8"), flags=re.MULTILINE)
    if found != 1:
        raise SystemExit(f"{settings} has {found} lines for font.family")
    settings.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
