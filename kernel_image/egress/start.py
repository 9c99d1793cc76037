"""Starts squid in place of this process, with the configuration that the gateway has put into the environment."""

from __future__ import annotations

import os
from pathlib import Path

#: environment variable with the configuration
VARIABLE = "EGRESS_CONFIG"
#: path of squid's configuration file, in memory
FILE = "/run/egress/squid.conf"
SQUID = "/usr/sbin/squid"


def main() -> None:
    """Write the file and start squid. With `-N` squid is no daemon, so the container ends when squid ends."""
    Path(FILE).write_text(os.environ.pop(VARIABLE))  # noqa: TID251 - the image's own, not the gateway's
    os.execv(SQUID, [SQUID, "-N", "-f", FILE])


if __name__ == "__main__":
    main()
