"""Which sandbox, and which of its ports, a request is for. Pure.

E2B's clients talk to a control plane and to two services of each sandbox. All are on the gateway's one port: a request
for a sandbox says so in two headers, or in its host, `<port>-<sandbox>.<domain>`. Only the host is left when user code
builds the URL, and only the signature in a signed URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tornado.httputil import HTTPServerRequest

#: ports of a sandbox's services: files and commands, and the code interpreter
ENVD = 49983
INTERPRETER = 49999
#: path of files, the only one that a signed URL may have
FILES = "/files"
#: form of the ids that this dialect gives
ID = re.compile("[a-z2-7]{20}")
_HOST = re.compile(rf"([0-9]{{1,5}})-({ID.pattern})\.", re.IGNORECASE)
_PORT = re.compile("[0-9]{1,5}")
#: the control plane's paths that only E2B's clients request, and those that it has in common with AgentRun's
_OWN = re.compile(r"/v2/sandboxes(/.*)?|/(snapshots|templates|volumes|secrets)(/.*)?|/v[23]/(templates|volumes)(/.*)?")
_SHARED = re.compile(r"/sandboxes(/.*)?")
#: beginning of the keys that these clients accept
KEY_PREFIX = "e2b_"


@dataclass(frozen=True, slots=True)
class Target:
    """One port of a sandbox, as a client names them."""

    sandbox: str
    #: 0: not a number
    port: int


def target_of(request: HTTPServerRequest) -> Target | None:
    """Return the sandbox and port that a request is for, or None if it names none."""
    if (sandbox := request.headers.get("E2b-Sandbox-Id")) is not None:
        port = request.headers.get("E2b-Sandbox-Port", "")
        return Target(sandbox, int(port) if _PORT.fullmatch(port) else 0)
    if found := _HOST.match(request.host):
        return Target(found[2].lower(), int(found[1]))
    return None


def serves(request: HTTPServerRequest) -> bool:
    """Return whether a request is from a client of E2B."""
    if target_of(request) is not None or request.path == FILES or _OWN.fullmatch(request.path):
        return True
    return _SHARED.fullmatch(request.path) is not None and _is_of_sdk(request)


def _is_of_sdk(request: HTTPServerRequest) -> bool:
    """Return whether the client is E2B's SDK, or one with a key or host of its form; AgentRun has the same paths."""
    headers = request.headers
    return (
        headers.get("X-API-Key", "").startswith(KEY_PREFIX)
        or headers.get("User-Agent", "").startswith("e2b-")
        or headers.get("publisher", "").lower() == "e2b"
        or request.host.lower().startswith("api.")
    )
