"""The text of an HTML output, for people at a terminal and for language models.

Python's own parser takes seconds for 20 kB of malformed HTML. Here a tag ends at the next `<` or `>`, so the time grows
only with the length; of an attribute that contains one of them, a piece becomes text.
"""

from __future__ import annotations

import html
import re

#: characters that are read, in about 20 ms
READ_MAX = 200_000
#: comments, and elements whose content is no text; what does not end is removed up to its end. An expression that
#: begins only at `<` and has no way back: each character is read once
_SILENT = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style|template|title)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*+)[^<>]*+>")
#: elements that begin and end a line
_LINES = frozenset(
    {"address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer", "form", "h1", "h2", "h3"}
    | {"h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "tr", "ul"}
)
_CELLS = frozenset({"td", "th"})


def html_text(source: str) -> str:
    """Return the text of HTML: a line for each block, a tab between the cells of a table's row.

    Of longer HTML than `READ_MAX` the beginning is read, and `…` follows.
    """
    spaced = _TAG.sub(_white, " ".join(_SILENT.sub("", source[:READ_MAX]).split()))
    lines = ("\t".join(cell.strip() for cell in line.split("\t")).strip() for line in spaced.split("\n"))
    text = html.unescape("\n".join(line for line in lines if line))
    return f"{text}…" if len(source) > READ_MAX and text else text


def _white(tag: re.Match[str]) -> str:
    """Return what stands for a tag."""
    name = tag[1].lower()
    if name in _LINES:
        return "\n"
    return "\t" if name in _CELLS and not tag[0].startswith("</") else ""
