"""Constants for programs that the provider `self_managed` forwards to another gateway's `/run`."""

from __future__ import annotations

from collections.abc import Mapping

#: languages that can be forwarded, with their names in `/run`
LANGUAGES: Mapping[str, str] = {"python": "python", "javascript": "nodejs"}

#: header that tells the other gateway to run the program itself. If it forwarded the program again, the program could
#: travel in a circle for ever.
FORWARDED = "X-Kernel-Gateway-Forwarded"
