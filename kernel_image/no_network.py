"""Says in each failed name lookup that the sandbox has no network. For every Python process of the image.

`kernel_gateway.pth` loads this module where the gateway says so (`NETWORK` in `protocol.py`). Without it a library
reports "Temporary failure in name resolution", tries again, and leaves people to look for a fault that is a policy.
"""

import _socket  # before `socket` is imported, which copies these functions; and cheaper
from collections.abc import Callable
from typing import Any

POLICY = (
    "this sandbox has no network: that is the gateway's policy, and a retry does not help. Its operator can offer "
    "packages (setting `wheels`, or `make image EXTRA=...`) or let sessions reach listed hosts (setting `egress_allow`)"
)


def _explained(lookup: Callable[..., Any]) -> Callable[..., Any]:
    def look_up(*args: Any, **options: Any) -> Any:
        try:
            return lookup(*args, **options)
        except _socket.gaierror as error:
            raise _socket.gaierror(error.errno, POLICY) from None

    return look_up


for _name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(_socket, _name, _explained(getattr(_socket, _name)))
