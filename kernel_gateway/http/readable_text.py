"""Chooses the text of an output that a person at a terminal, or a language model, can read."""

from __future__ import annotations

import re
from typing import Any

from kernel_gateway.http.html_text import html_text
from sessions.model import exact_json

#: text that only names a displayed object, like `<IPython.core.display.HTML object>` or `<pandas.…Styler at 0x7f00>`
_NAME = re.compile(r"<[\w.]{1,200}(?: object| at 0x[0-9a-f]{1,16}| object at 0x[0-9a-f]{1,16})>")


def readable_text(data: dict[str, Any]) -> str | None:
    """Return the text of an output that says most, by its data by media type. None means that it has none.

    Markdown, formulas and JSON of IPython have a `text/plain` that only names their class. Then their own text is
    taken, which people read as it is. Last comes the text of HTML.
    """
    texts = [data[mime] for mime in ("text/plain", "text/markdown", "text/latex") if isinstance(data.get(mime), str)]
    telling = [text for text in texts if not _NAME.fullmatch(text)]
    if telling:
        return str(telling[0])
    if "application/json" in data:
        return exact_json.dumps(data["application/json"]).decode()
    if isinstance(data.get("text/html"), str) and (text := html_text(data["text/html"])):
        return text
    return str(texts[0]) if texts else None
