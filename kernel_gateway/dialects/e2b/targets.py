"""Finds the sandbox, and the port of its service, that a request is for. Pure functions.

E2B's clients talk to a control plane and to two services of each sandbox. Here all of them share the gateway's port. A
request for a sandbox names it in two headers, or in its host, `<port>-<sandbox>.<domain>`. A URL that user code builds
has only the host, and a signed URL may have only the signature.
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
#: format of the ids of this dialect's sandboxes
ID = re.compile("[a-z2-7]{20}")
#: a suffix after the id is ignored. Source: E2B's proxy
_HOST = re.compile(rf"([0-9]{{1,5}})-({ID.pattern})(?:-[a-z0-9-]{{0,63}})?\.", re.IGNORECASE)
_PORT = re.compile("[0-9]{1,5}")
#: paths of the control plane that only E2B's clients request, and paths that AgentRun's clients request, too
_OWN = re.compile(r"/v2/sandboxes(/.*)?|/(snapshots|templates|volumes|secrets)(/.*)?|/v[23]/(templates|volumes)(/.*)?")
_SHARED = re.compile(r"/sandboxes(/.*)?")
#: prefix of the keys that these clients accept
KEY_PREFIX = "e2b_"


@dataclass(frozen=True, slots=True)
class Target:
    """The sandbox and the port that a request names. Neither is checked yet."""

    sandbox: str
    #: 0 if the client has sent no number
    port: int


def target_of(request: HTTPServerRequest) -> Target | None:
    """Return the sandbox and the port that a request names, or None if it names no sandbox. Its host comes first."""
    if found := _HOST.match(request.host):
        return Target(found[2].lower(), int(found[1]))
    if (sandbox := request.headers.get("E2b-Sandbox-Id")) is not None:
        port = request.headers.get("E2b-Sandbox-Port", "")
        return Target(sandbox, int(port) if _PORT.fullmatch(port) else 0)
    return None


def named_by_host(request: HTTPServerRequest) -> bool:
    """Return whether the request's host names the sandbox: then its servers have an origin of their own."""
    return _HOST.match(request.host) is not None


def serves(request: HTTPServerRequest) -> bool:
    """Return whether a request belongs to this dialect."""
    if target_of(request) is not None or request.path == FILES or _OWN.fullmatch(request.path):
        return True
    return _SHARED.fullmatch(request.path) is not None and _is_of_sdk(request)


def _is_of_sdk(request: HTTPServerRequest) -> bool:
    """Return whether the client is E2B's SDK, or uses a key or host in E2B's format. AgentRun has the same paths."""
    headers = request.headers
    return (
        headers.get("X-API-Key", "").startswith(KEY_PREFIX)
        or headers.get("User-Agent", "").startswith("e2b-")
        or headers.get("publisher", "").lower() == "e2b"
        or request.host.lower().startswith("api.")
    )
