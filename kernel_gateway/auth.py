"""A credential becomes a tenant, in constant time. Every way to carry a key that a dialect knows is read here."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from tornado.httputil import HTTPServerRequest

from kernel_gateway.errors import Unauthorized
from kernel_gateway.signatures import Signature

#: the tenant of a gateway that was given no keys
LOCAL_TENANT = "local"


class Keys:
    """The keys there are, as digests."""

    def __init__(self, keys: Mapping[str, str], access_keys: Mapping[str, tuple[str, str]] | None = None) -> None:
        """Keep them.

        Args:
            keys: tenant by key.
            access_keys: tenant and secret by id, of clients that sign; the secret is needed to verify, and kept.
        """
        self._tenants = [(_digest(key), tenant) for key, tenant in keys.items()]
        self._access_keys = dict(access_keys or {})
        self._tokens: dict[str, str] = {}

    def tenant(self, request: HTTPServerRequest, *, in_query: bool = False) -> str:
        """Whose request it is.

        Args:
            request: what came in.
            in_query: `?token=KEY` counts, because these clients know no other way.

        Raises:
            Unauthorized: it carries no key, or one that is not known.
        """
        key = _credential(request) or (_in_query(request) if in_query else None)
        if key is None:
            raise Unauthorized("the request carries no key")
        if (owner := self._find(key)) is None:
            raise Unauthorized
        return owner

    def signer(self, request: HTTPServerRequest) -> str:
        """Whose request it is, of those that may be signed instead of carrying a key.

        A session token or access token is a key too: who has only that can sign with whatever it likes.

        Raises:
            Unauthorized: neither key nor signature is known.
        """
        for name in ("X-Acs-Security-Token", "Agentrun-Access-Token"):
            if (key := request.headers.get(name)) and (owner := self._find(key)):
                return owner
        signature = Signature.of(request)
        if signature is None:
            return self.tenant(request)
        # Somebody's secret is always tried: how long it takes does not tell which ids there are.
        tenant, secret = self._access_keys.get(signature.access_key, (None, secrets.token_hex()))
        if not signature.is_of(request, secret) or tenant is None:
            raise Unauthorized("the signature is not right; check the access key, its secret and the clock")
        return tenant

    def token(self, tenant: str) -> str:
        """A key for a tenant that is good until the gateway ends, the same for each who asks."""
        if tenant not in self._tokens:
            self._tokens[tenant] = secrets.token_urlsafe(32)
            self._tenants.append((_digest(self._tokens[tenant]), tenant))
        return self._tokens[tenant]

    def _find(self, key: str) -> str | None:
        digest, found = _digest(key), None
        for known, tenant in self._tenants:  # all of them, however early one fits
            if hmac.compare_digest(known, digest):
                found = tenant
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _credential(request: HTTPServerRequest) -> str | None:
    """`Authorization: Bearer KEY` or `token KEY`, `X-API-Key: KEY`."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() in {"bearer", "token"} and key.strip():
        return key.strip()
    return request.headers.get("X-API-Key") or None


def _in_query(request: HTTPServerRequest) -> str | None:
    return request.query_arguments.get("token", [b""])[-1].decode("utf-8", "replace") or None


def make_local_key(state_dir: Path) -> tuple[str, Path]:
    """A key for this start of a gateway that was given none, written to a file only its user can read.

    Returns:
        the key, and the file.
    """
    key = secrets.token_urlsafe(32)
    path = state_dir / "key"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key + "\n")
    return key, path
