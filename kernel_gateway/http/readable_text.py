"""Chooses the text of an output that a person at a terminal, or a language model, can read."""

from __future__ import annotations

from typing import Any


def readable_text(data: dict[str, Any]) -> str | None:
    """Return the text of an output, by its data by media type. None means that it has none.

    Markdown and formulas of IPython have a `text/plain` that only names their class
    (`<IPython.core.display.Markdown object>`). Then their own text is taken, which people read as it is.
    """
    texts = [data[mime] for mime in ("text/plain", "text/markdown", "text/latex") if isinstance(data.get(mime), str)]
    return next((text for text in texts if not _names_a_class(text)), texts[0] if texts else None)


def _names_a_class(text: str) -> bool:
    return text.startswith("<") and text.endswith(" object>")
