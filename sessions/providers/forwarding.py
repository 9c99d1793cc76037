"""What a gateway and its provider `self_managed` agree on where programs are passed on to another gateway's `/run`."""

from __future__ import annotations

from collections.abc import Mapping

#: the languages that can be passed on, and what `/run` calls them
LANGUAGES: Mapping[str, str] = {"python": "python", "javascript": "nodejs"}

#: tells a gateway over there to run the program itself: passed on once more, it could come round for ever
FORWARDED = "X-Kernel-Gateway-Forwarded"
