"""Checks the names and passwords of sessions for squid.

The program follows squid's protocol for helpers of basic authentication: it reads lines `name password` from stdin,
both percent-encoded, and answers each with a line `OK` or `ERR`. A password is a digest of the name and a secret, so
the proxy needs no list of sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from urllib.parse import unquote

#: environment variable with the secret of one installation
VARIABLE = "EGRESS_SECRET"


def password(secret: str, name: str) -> str:
    """Return the password for a session's name."""
    return hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()


def main(secret: str) -> None:
    """Answer until squid closes stdin."""
    for line in sys.stdin:
        name, _, given = (unquote(word) for word in line.rstrip("\n").partition(" "))
        good = hmac.compare_digest(given.encode(), password(secret, name).encode())
        print("OK" if good else "ERR", flush=True)


if __name__ == "__main__":
    main(os.environ[VARIABLE])  # noqa: TID251 - the image's own, not the gateway's
