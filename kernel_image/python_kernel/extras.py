"""What the gateway asks of a cell's kernel besides running the code, in the same request.

The content of an `execute_request` may have an object `gateway_extras` with two fields:

- `env`: environment variables for this cell alone. Afterwards the earlier values are back.
- `formats`: further MIME types that the cell's displays and result get where possible; `formats.py` has those that
  there are. Clients that do not ask for them get no larger outputs. With `SAVED_IMAGES` among them, images that Pillow
  saves are displayed, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

#: field of the content
EXTRAS = "gateway_extras"


def extras_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a request asks for; most ask for nothing."""
    asked: Mapping[str, Any] = request["content"].get(EXTRAS, {})
    return asked


@contextmanager
def granted(asked: Mapping[str, Any], displays: Any) -> Iterator[None]:
    """Grant what a request asks for while its cell runs.

    Args:
        asked: what `extras_of` has returned.
        displays: IPython's `DisplayFormatter`.
    """
    variables = os.environ  # noqa: TID251 - the sandbox's, not the gateway's
    env: Mapping[str, str] = asked.get("env", {})
    before = {name: variables.get(name) for name in env}
    usual = displays.formatters
    saving: AbstractContextManager[None] = nullcontext()
    variables.update(env)
    if wanted := asked.get("formats"):
        from .formats import SAVED_IMAGES, formatters, showing_saved_images  # noqa: PLC0415 - most kernels never need it

        more = formatters(displays)
        displays.formatters = usual | {mime: more[mime] for mime in more.keys() & wanted}
        if SAVED_IMAGES in wanted:
            saving = showing_saved_images()
    try:
        with saving:
            yield
    finally:
        displays.formatters = usual
        for name, value in before.items():
            if value is None:
                variables.pop(name, None)
            else:
                variables[name] = value
