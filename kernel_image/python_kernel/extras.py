"""Further wishes of the gateway for a cell: environment variables, formats of outputs, and tools.

The content of an `execute_request` may have an object `gateway_extras` with these fields:

- `env`: environment variables for this cell only. After the cell, the earlier values are restored.
- `formats`: additional MIME types for the cell's displays and its result, where possible; `formats.py` makes them. They
  are made only on request, because they make outputs larger. If the list has `SAVED_IMAGES`, images that Pillow saves
  are displayed, too.
- `tools`: functions outside of the sandbox that the cell may call; see `tools.py`.
- `frame`: number of the frame of the last uncaught exception in which the cell runs; see `post_mortem.py`.
- `tool_servers`: names of the operator's servers, whose functions the cell may call, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

#: field of the request's content
EXTRAS = "gateway_extras"


def extras_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object `gateway_extras` of a request, which is empty for most requests."""
    asked: Mapping[str, Any] = request["content"].get(EXTRAS, {})
    return asked


@contextmanager
def granted(asked: Mapping[str, Any], displays: Any) -> Iterator[None]:
    """Fulfil the wishes of a request while its cell runs.

    Args:
        asked: the wishes, from `extras_of`.
        displays: IPython's `DisplayFormatter`.
    """
    variables = os.environ  # noqa: TID251 - the sandbox's, not the gateway's
    env: Mapping[str, str] = asked.get("env", {})
    before = {name: variables.get(name) for name in env}
    usual = displays.formatters
    saving: AbstractContextManager[None] = nullcontext()
    variables.update(env)
    if wanted := asked.get("formats"):
        from .formats import SAVED_IMAGES, formatters, showing_saved_images  # noqa: PLC0415 - few kernels need it

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
