"""Rules for names and environments that clients give, once for all dialects. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sessions.errors import InvalidRequest
from sessions.units import ENV_NAMES

#: One allow-list for tenants and sessions. No colon, so that `tenant:session` has exactly one reading.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Names that would change what the interpreter loads before any user code runs.
ENV_DENIED = re.compile(r"(LD_|PYTHON|IPYTHON|JUPYTER|DENO_|KERNEL_GATEWAY_).*|PATH|HOME|SHELL")
#: Characters that cannot be passed to a process: NUL and lone surrogates.
NOT_PASSED = re.compile("[\0\ud800-\udfff]")
ENV_MAX_BYTES = 32 * 1024


def valid_name(kind: str, value: object) -> str:
    """Check a tenant's or session's name.

    Args:
        kind: kind of the name, for the message.
        value: name as received.

    Raises:
        InvalidRequest: when the value is not a string of the allowed form.
    """
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{kind} must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit", field=kind)


def valid_env(env: Mapping[str, str]) -> dict[str, str]:
    """Check a session's extra environment variables.

    Raises:
        InvalidRequest: when there are too many, a name is malformed or reserved, a value is no text, or all together
            are too large.
    """
    if len(env) > ENV_NAMES:
        raise InvalidRequest(f"env has more than {ENV_NAMES} variables", field="env")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or ENV_DENIED.fullmatch(name):
            raise InvalidRequest(f"environment variable {name[:64]!r} cannot be set", field="env")
        if NOT_PASSED.search(value):
            raise InvalidRequest(f"the value of {name} contains a NUL or a lone surrogate", field="env")
    if sum(len(name) + len(value.encode()) for name, value in env.items()) > ENV_MAX_BYTES:
        raise InvalidRequest(f"env is larger than {ENV_MAX_BYTES} bytes", field="env")
    return dict(env)
