"""Tokens and signatures, with which clients use one sandbox without a key of its tenant. Pure functions.

Both are derived from the sandbox's secret, so they stay valid after a restart of the gateway.
Source of the signature: `e2b` 2.63, `e2b/sandbox/signature.py`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass


def new_secret() -> str:
    """Return a secret for a new sandbox."""
    return secrets.token_hex(32)


#: random bytes of a new id
_ID_BYTES = 13


def new_id(seed: bytes | None = None) -> str:
    """Return the id of a new sandbox, made from these bytes. None makes a random id."""
    return base64.b32encode(seed or secrets.token_bytes(_ID_BYTES))[:20].decode().lower()


def access_token(secret: str) -> str:
    """Return the token that permits files, commands and code."""
    return _token(secret, "access")


def traffic_token(secret: str) -> str:
    """Return the token that permits only code."""
    return _token(secret, "traffic")


def _token(secret: str, purpose: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def is_token(given: str, token: str) -> bool:
    """Return whether two tokens are equal, in constant time."""
    return hmac.compare_digest(_bytes(given), token.encode())


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """A signed URL: its signature, and the values that the signature covers."""

    path: str
    #: `read` or `write`
    operation: str
    #: empty if the URL names no user
    user: str
    #: seconds since 1970; None if the URL does not expire
    expiration: str | None
    signature: str

    def is_of(self, secret: str) -> bool:
        """Return whether the signature is right for the sandbox with this secret, in constant time."""
        parts = [self.path, self.operation, self.user, access_token(secret)]
        digest = hashlib.sha256(_bytes(":".join(parts if self.expiration is None else [*parts, self.expiration])))
        return is_token(self.signature, f"v1_{base64.b64encode(digest.digest()).decode().rstrip('=')}")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
