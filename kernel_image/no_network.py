"""Explains in the error of each failed name lookup that the sandbox has no network.

`kernel_gateway.pth` loads this module in every Python process of a sandbox without network (`NETWORK` in
`protocol.py`). Otherwise the error would be "Temporary failure in name resolution": libraries would try again, and
people would search for a fault, although it is a policy. Pip would try again, too, and then say that there is no such
package; here it ends at once with this error, unless it was told of a directory with packages.
"""

import _socket  # not `socket`, which copies these functions when it is imported, and takes longer to import
import sys
from collections.abc import Callable
from typing import Any

POLICY = (
    "this sandbox has no network: that is the gateway's policy, and a retry does not help. Its operator can offer "
    "packages (setting `wheels`, or `make image EXTRA=...`) or let sessions reach listed hosts (setting `egress_allow`)"
)
#: beginnings of the options that tell pip of a directory
_DIRECTORIES = ("-f", "--find-links")


def _explained(lookup: Callable[..., Any]) -> Callable[..., Any]:
    def look_up(*args: Any, **options: Any) -> Any:
        try:
            return lookup(*args, **options)
        except _socket.gaierror as error:
            pip = sys.modules.get("pip._internal.exceptions")
            if pip is not None and not any(word.startswith(_DIRECTORIES) for word in sys.argv):
                raise pip.CommandError(POLICY) from None  # pip prints it as its error; any other one it would log
            raise _socket.gaierror(error.errno, POLICY) from None

    return look_up


for _name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(_socket, _name, _explained(getattr(_socket, _name)))
