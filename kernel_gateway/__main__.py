"""Entry point of `kernel-gateway` and `python -m kernel_gateway`."""

from __future__ import annotations

import sys

from kernel_gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
