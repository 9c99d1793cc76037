"""The media types that a client wants, from its header `Accept`. Source: RFC 9110, 12.4.2 and 12.5.1."""

from __future__ import annotations

import re

_WEIGHT = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


def weights(accept: str) -> dict[str, float]:
    """Return the weight of each media range that the header names; 0 excludes it."""
    found = {}
    for item in accept.lower().split(","):
        media_range, *parameters = (part.strip() for part in item.split(";"))
        given = [weight[1] for part in parameters if (weight := _WEIGHT.fullmatch(part))]
        found[media_range] = float(given[0]) if given else 1.0
    return found


def accepts(accept: str, media_type: str) -> bool:
    """Return whether the header allows a media type, by its name or by a range such as `*/*`."""
    named = weights(accept)
    for media_range in (media_type, media_type.partition("/")[0] + "/*", "*/*"):  # the most exact one decides
        if media_range in named:
            return named[media_range] > 0
    return False
