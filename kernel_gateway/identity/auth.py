"""Finds the caller of a request by its key or signature. Keys are compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tornado.httputil import HTTPServerRequest

from kernel_gateway.errors import Unauthorized
from kernel_gateway.identity.keystore import Key, KeyStore, Role
from kernel_gateway.identity.nonces import Nonces
from kernel_gateway.identity.refusals import RefusalPace
from kernel_gateway.identity.signatures import Signature
from kernel_gateway.times import rfc3339
from sessions.providers.forwarding import FORWARDED

#: the tenant of a gateway without configured keys
LOCAL_TENANT = "local"
_LOCAL_KEY_BYTES = 32
_LOCAL_KEY = re.compile(r"[\w-]{43}")
#: the tenant of the setting `admin_key`
ADMIN_TENANT = "admin"

#: headers that ordinary HTTP libraries send. Any other header may come from a browser or a proxy, so a request with
#: another header needs a key. Proxies that add no header, such as nginx, send HTTP/1.0 requests
_PROGRAM_HEADERS = frozenset({
    "Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Transfer-Encoding",
    "User-Agent", "X-Request-Id", FORWARDED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a credential."""

    tenant: str
    role: Role = Role.USER
    #: id of the key if it can be revoked; None for other keys
    key_id: str | None = None
    #: id of a key of the settings, which cannot be revoked; None for other keys
    fixed_id: str | None = None

    @property
    def told_id(self) -> str | None:
        """Id of the key for the audit and the log. None without a key."""
        return self.key_id or self.fixed_id


class Keys:
    """All valid keys, as digests."""

    def __init__(
        self,
        keys: Mapping[str, str],
        access_keys: Mapping[str, tuple[str, str]] | None = None,
        store: KeyStore | None = None,
        admin_key: str | None = None,
        *,
        trusts_local_clients: bool = False,
    ) -> None:
        """Store the keys.

        Args:
            keys: tenant by key.
            access_keys: tenant and secret by the id of an access key, for clients that sign. Verifying a signature
                needs the secret itself, not its digest.
            store: keys that are made and revoked while the gateway runs. None means that there are no such keys.
            admin_key: key of the gateway's operator. None means that there is no such key.
            trusts_local_clients: True if some clients on this machine need no key; see `local_caller`.
        """
        #: when requests without a valid key get their answers
        self.refusals = RefusalPace(time.monotonic)
        self._trusts_local_clients = trusts_local_clients
        self._store = store
        self._callers = [(_digest(key), Caller(tenant, fixed_id=_id_of(key))) for key, tenant in keys.items()]
        if admin_key is not None:
            admin = Caller(ADMIN_TENANT, Role.ADMIN, fixed_id=_id_of(admin_key))
            self._callers.append((_digest(admin_key), admin))
        self._access_keys = dict(access_keys or {})
        self._tokens: dict[Caller, str] = {}
        self._nonces = Nonces(time.time)

    def caller(self, request: HTTPServerRequest, *, in_query: bool = False, as_password: bool = False) -> Caller:
        """Return the caller of a request.

        Args:
            request: the incoming request.
            in_query: True to also accept `?token=KEY`, for clients that cannot set headers.
            as_password: True to also accept `Authorization: Basic`, for clients that can send a key only in a URL.

        Raises:
            Unauthorized: when the request carries no key, an unknown one, or one that has expired.
        """
        key = _credential(request) or (_in_query(request) if in_query else None)
        if key is None and as_password:
            key = _password(request)
        if key is None:
            raise Unauthorized("the request carries no key")
        if (owner := self._find(key)) is None:
            raise Unauthorized
        return owner

    def caller_of(self, key: str) -> Caller:
        """Return the caller with a key that a client has sent otherwise than in the head of its request.

        Raises:
            Unauthorized: when the key is unknown or has expired.
        """
        if (owner := self._find(key)) is None:
            raise Unauthorized
        return owner

    def local_caller(self, request: HTTPServerRequest) -> Caller | None:
        """Return the caller of a local request without a key, or None if the request needs a key.

        Every request needs a key as soon as the settings or the store contain one: then a proxy may run on this machine
        that forwards remote clients without naming them.
        """
        if not self._trusts_local_clients or not _is_loopback(request.remote_ip):
            return None
        if not _PROGRAM_HEADERS.issuperset(request.headers) or request.version == "HTTP/1.0":
            return None
        if self._store is not None and self._store.all():
            return None
        return Caller(LOCAL_TENANT)

    def caller_by_signature(self, request: HTTPServerRequest) -> Caller:
        """Return the caller of a request with a signature or a key.

        A session token or an access token counts as a key: if a client sends a valid one, its signature is ignored.

        Raises:
            Unauthorized: when neither the key nor the signature is valid, or its nonce was used before.
            QuotaExceeded: when the access key has signed too many requests.
        """
        for name in ("X-Acs-Security-Token", "Agentrun-Access-Token"):
            if (key := request.headers.get(name)) and (owner := self._find(key)):
                return owner
        signature = Signature.of(request)
        if signature is None:
            return self.caller(request)
        # An unknown id is checked with a random secret, so that the response time does not reveal which ids exist.
        tenant, secret = self._access_keys.get(signature.access_key, (None, secrets.token_hex()))
        if not signature.is_of(request, secret) or tenant is None:
            raise Unauthorized("the signature is not right; check the access key, its secret and the clock")
        if signature.nonce is not None and not self._nonces.use(signature.access_key, signature.nonce, signature.until):
            raise Unauthorized("the nonce was used before")
        return Caller(tenant, fixed_id=_id_of(signature.access_key))

    def token(self, caller: Caller) -> str:
        """Return a token that is a key of the caller's tenant, always with the role user.

        The token is valid until the gateway ends or the caller's own key is revoked. All calls with the same caller
        return the same token.
        """
        bearer = replace(caller, role=Role.USER)
        if bearer not in self._tokens:
            self._forget_revoked()
            self._tokens[bearer] = secrets.token_urlsafe(32)
            self._callers.append((_digest(self._tokens[bearer]), bearer))
        return self._tokens[bearer]

    def _forget_revoked(self) -> None:
        """Drop the tokens of revoked keys, because every request is compared with all stored tokens."""
        revoked = {caller for caller in self._tokens if not self.is_still_valid(caller)}
        self._callers = [(digest, caller) for digest, caller in self._callers if caller not in revoked]
        for caller in revoked:
            del self._tokens[caller]

    def tenants(self) -> set[str]:
        """Return the tenants that currently have a key."""
        kept = {key.tenant for key in self._store.all()} if self._store is not None else set()
        return kept | self.fixed_tenants()

    def fixed_tenants(self) -> set[str]:
        """Return the tenants that have a key which cannot be revoked."""
        fixed = {caller.tenant for _, caller in self._callers if caller.key_id is None}
        return fixed | {tenant for tenant, _ in self._access_keys.values()}

    def is_still_valid(self, caller: Caller) -> bool:
        """Return True unless the caller's key was revoked or has expired after the caller was identified."""
        return caller.key_id is None or ((kept := self._kept(caller.key_id)) is not None and not kept.expired)

    def _kept(self, key_id: str) -> Key | None:
        return None if self._store is None else self._store.get(key_id)

    def note_use(self, caller: Caller) -> None:
        """Remember the time at which a key was last used."""
        if self._store is not None and caller.key_id is not None:
            self._store.note_use(caller.key_id)

    def _find(self, key: str) -> Caller | None:
        """Return the owner of a key, or None for an unknown key.

        Raises:
            Unauthorized: when the key has expired.
        """
        found = self._fixed(key)
        if found is None:
            kept = None if self._store is None else self._store.find(key)
        elif found.key_id is None:
            return found
        else:
            kept = self._kept(found.key_id)  # the key that the token was made with
        if kept is None:
            return None
        if kept.expired:
            raise Unauthorized(f"the key has expired: it was valid until {rfc3339(kept.expires_at or 0)}")
        return found or Caller(kept.tenant, kept.role, kept.id)

    def _fixed(self, key: str) -> Caller | None:
        """Return the owner of a key of the settings or of a token."""
        digest, found = _digest(key), None
        for known, caller in self._callers:  # compare with all keys, even after a match, so that the time is constant
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _id_of(key: str) -> str:
    """Return the id of a key of the settings: the beginning of its digest, which does not reveal the key."""
    return f"s-{_digest(key).hex()[:8]}"


def _credential(request: HTTPServerRequest) -> str | None:
    """Read `Authorization: Bearer KEY` or `token KEY`, or `X-API-Key: KEY`."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() in {"bearer", "token"} and key.strip():
        return key.strip()
    return request.headers.get("X-API-Key") or None


def _password(request: HTTPServerRequest) -> str | None:
    """Read `Authorization: Basic base64(any:KEY)`. Source: RFC 7617."""
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
    """Return the key of a gateway without configured keys. Generate it on first use.

    The key is stored in a file that only its owner can read. If the file is removed, the next start makes another key.

    Returns:
        the key, and the path of the file.
    """
    path = state_dir / "key"
    if _is_private(path) and _LOCAL_KEY.fullmatch(key := path.read_text().strip()):
        return key, path
    key = secrets.token_urlsafe(_LOCAL_KEY_BYTES)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key + "\n")
    return key, path


def _is_private(path: Path) -> bool:
    """Return whether the path is a regular file that only this user can read and write."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.getuid()
