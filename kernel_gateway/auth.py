"""A credential becomes a caller, in constant time. Every way to carry a key that a dialect knows is read here."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tornado.httputil import HTTPServerRequest

from kernel_gateway.errors import Unauthorized
from kernel_gateway.keystore import KeyStore, Role
from kernel_gateway.signatures import Signature

#: the tenant of a gateway that was given no keys
LOCAL_TENANT = "local"
#: the tenant of the setting `admin_key`
ADMIN_TENANT = "admin"

#: what a proxy says of whom it speaks for, and a browser of the page; who sends one of them is no neighbour
_FOR_OTHERS = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via", "Origin")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a credential is of."""

    tenant: str
    role: Role = Role.USER
    #: of a key that can be revoked, its id
    key_id: str | None = None


class Keys:
    """The keys there are, as digests."""

    def __init__(
        self,
        keys: Mapping[str, str],
        access_keys: Mapping[str, tuple[str, str]] | None = None,
        store: KeyStore | None = None,
        admin_key: str | None = None,
        *,
        trusts_neighbours: bool = False,
    ) -> None:
        """Keep them.

        Args:
            keys: tenant by key.
            access_keys: tenant and secret by id, of clients that sign; the secret is needed to verify, and kept.
            store: those that are made and revoked meanwhile.
            admin_key: of the one who looks after the gateway.
            trusts_neighbours: who is on this machine may need no key; see `neighbour`.
        """
        self._trusts_neighbours = trusts_neighbours
        self._store = store
        self._callers = [(_digest(key), Caller(tenant)) for key, tenant in keys.items()]
        if admin_key is not None:
            self._callers.append((_digest(admin_key), Caller(ADMIN_TENANT, Role.ADMIN)))
        self._access_keys = dict(access_keys or {})
        self._tokens: dict[Caller, str] = {}

    def caller(self, request: HTTPServerRequest, *, in_query: bool = False, as_password: bool = False) -> Caller:
        """Whose request it is.

        Args:
            request: what came in.
            in_query: `?token=KEY` counts, because these clients know no other way.
            as_password: so does `Authorization: Basic`, for clients that can carry a key only in a URL.

        Raises:
            Unauthorized: it carries no key, or one that is not known.
        """
        key = _credential(request) or (_in_query(request) if in_query else None)
        if key is None and as_password:
            key = _password(request)
        if key is None:
            raise Unauthorized("the request carries no key")
        if (owner := self._find(key)) is None:
            raise Unauthorized
        return owner

    def neighbour(self, request: HTTPServerRequest) -> Caller | None:
        """The caller of a request without a key from this machine; None: it needs one.

        Nobody may have been given a key, neither by the settings nor later: a gateway with tenants may stand behind a
        proxy on this machine that says nothing of whom it speaks for.
        """
        if not self._trusts_neighbours or any(name in request.headers for name in ("Authorization", "X-API-Key")):
            return None
        if any(name in request.headers for name in _FOR_OTHERS) or not _is_loopback(request.remote_ip):
            return None
        if self._store is not None and self._store.all():
            return None
        return Caller(LOCAL_TENANT)

    def signer(self, request: HTTPServerRequest) -> Caller:
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
            return self.caller(request)
        # Somebody's secret is always tried: how long it takes does not tell which ids there are.
        tenant, secret = self._access_keys.get(signature.access_key, (None, secrets.token_hex()))
        if not signature.is_of(request, secret) or tenant is None:
            raise Unauthorized("the signature is not right; check the access key, its secret and the clock")
        return Caller(tenant)

    def token(self, caller: Caller) -> str:
        """A key for the caller's tenant that is good until the gateway ends, or until the caller's own is revoked.

        It is the same for each who asks with the same key, and opens what users may do, whatever the caller's role.
        """
        bearer = replace(caller, role=Role.USER)
        if bearer not in self._tokens:
            self._tokens[bearer] = secrets.token_urlsafe(32)
            self._callers.append((_digest(self._tokens[bearer]), bearer))
        return self._tokens[bearer]

    def tenants(self) -> set[str]:
        """Whoever has a key now."""
        kept = {key.tenant for key in self._store.all()} if self._store is not None else set()
        fixed = {caller.tenant for _, caller in self._callers if caller.key_id is None}
        return kept | fixed | {tenant for tenant, _ in self._access_keys.values()}

    def still_knows(self, caller: Caller) -> bool:
        """Whether the key that somebody came with has not been revoked since."""
        return caller.key_id is None or (self._store is not None and self._store.get(caller.key_id) is not None)

    def _find(self, key: str) -> Caller | None:
        digest, found = _digest(key), None
        for known, caller in self._callers:  # all of them, however early one fits
            if hmac.compare_digest(known, digest):
                found = caller
        if found is not None:
            return found if self.still_knows(found) else None
        if self._store is not None and (kept := self._store.find(key)):
            return Caller(kept.tenant, kept.role, kept.id)
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _credential(request: HTTPServerRequest) -> str | None:
    """`Authorization: Bearer KEY` or `token KEY`, `X-API-Key: KEY`."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() in {"bearer", "token"} and key.strip():
        return key.strip()
    return request.headers.get("X-API-Key") or None


def _password(request: HTTPServerRequest) -> str | None:
    """`Authorization: Basic base64(any:KEY)`. Source: RFC 7617."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2] or None
    except ValueError:
        return None


def _is_loopback(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


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
