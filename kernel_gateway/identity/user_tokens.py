"""Verifies the tokens that LibreChat signs for its users (JWT with EdDSA or RS256), and names tenant and user.

The operator's key decides on the algorithm, and never the token's own header: so neither `none` nor an HMAC with the
public key as its secret can be accepted. `cryptography` verifies the signatures; the form of these tokens is so narrow
that a further library would only add more ways to read them. Sources: RFC 7515, RFC 7519, RFC 8725.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kernel_gateway.errors import Unauthorized
from kernel_gateway.identity.auth import Caller
from sessions.model.errors import InvalidRequest
from sessions.model.values import NAME

#: what the tokens must say about who made them, and for whom: LibreChat's defaults
ISSUER, AUDIENCE = "librechat", "codeapi"
#: tenant of a LibreChat that has only one
ONLY_TENANT = "legacy"
#: maximum seconds between a token's issue and its end, and between two clocks
LIFETIME_MAX, SKEW = 300, 30
#: maximum characters of a token, and of the names of users and tenants
TOKEN_MAX, CLAIM_MAX = 8192, 256
RSA_BITS_MIN = 2048

_TOKEN = re.compile(r"(eyJ[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----")

PublicKey = Ed25519PublicKey | RSAPublicKey


@dataclass(frozen=True, slots=True)
class User:
    """One user of a tenant."""

    caller: Caller
    #: id of the user, as LibreChat writes it
    name: str


class UserTokens:
    """The keys that tokens of users are verified with."""

    def __init__(self, keys: tuple[PublicKey, ...], clock: Callable[[], float] = time.time) -> None:
        """Keep the keys.

        Args:
            keys: public keys of LibreChat. A token may be signed with any of them.
            clock: returns the seconds since 1970.
        """
        self._keys = keys
        self._clock = clock

    @classmethod
    def of_file(cls, path: Path) -> UserTokens:
        """Read the keys from a PEM file with one or more public keys.

        Raises:
            InvalidRequest: when the file cannot be read, has no key, or has one that cannot be used.
        """
        try:
            blocks = _PEM.findall(path.expanduser().read_text())
            keys = tuple(load_pem_public_key(block.encode()) for block in blocks)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{path}: {error}", field="librechat_keys") from error
        if not keys:
            raise InvalidRequest(f"{path} has no public key in PEM", field="librechat_keys")
        return cls(tuple(_usable(key, path) for key in keys))

    @staticmethod
    def is_one(credential: str) -> bool:
        """Return whether a credential has the form of such a token."""
        return len(credential) <= TOKEN_MAX and _TOKEN.fullmatch(credential) is not None

    def user(self, token: str) -> User:
        """Return the user of a token.

        Raises:
            Unauthorized: when the token is not signed with one of the keys, is not meant for this gateway, or its time
                is over or has not come.
        """
        found = _TOKEN.fullmatch(token)
        if found is None or not self._is_signed(*found.groups()):
            raise Unauthorized("the token is not signed with a key of this gateway's LibreChat")
        claims = _object(found[2])
        self._check_time(claims)
        audience = claims.get("aud")
        if claims.get("iss") != ISSUER or AUDIENCE not in (audience if isinstance(audience, list) else [audience]):
            raise Unauthorized(f"the token must have iss {ISSUER} and aud {AUDIENCE}")
        user, tenant = _name(claims, "sub"), _name(claims, "tenant_id", ONLY_TENANT)
        mark = hashlib.sha256(user.encode()).hexdigest()[:8]
        return User(Caller(_tenant(tenant), fixed_id=f"u-{mark}"), user)

    def _is_signed(self, head: str, claims: str, signature: str) -> bool:
        header = _object(head)
        if "crit" in header or header.get("typ", "JWT") != "JWT":
            return False
        signed, value = f"{head}.{claims}".encode(), _decoded(signature)
        return any(_verifies(key, header.get("alg"), value, signed) for key in self._keys)

    def _check_time(self, claims: Mapping[str, Any]) -> None:
        issued, ends = claims.get("iat"), claims.get("exp")
        begins = claims.get("nbf", issued)
        if type(issued) is not int or type(ends) is not int or type(begins) is not int:
            raise Unauthorized("the token must have iat and exp, in seconds")
        if not 0 < ends - issued <= LIFETIME_MAX:
            raise Unauthorized(f"the token must be valid for at most {LIFETIME_MAX} s")
        if not max(issued, begins) - SKEW <= self._clock() < ends + SKEW:
            raise Unauthorized("the token's time is over or has not come; check the clocks of both machines")


def _usable(key: object, path: Path) -> PublicKey:
    if isinstance(key, Ed25519PublicKey) or (isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN):
        return key
    raise InvalidRequest(
        f"{path}: keys must be Ed25519, or RSA with at least {RSA_BITS_MIN} bits", field="librechat_keys"
    )


def _verifies(key: PublicKey, algorithm: object, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, signed)
            return algorithm == "EdDSA"
        key.verify(signature, signed, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return algorithm == "RS256"


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Unauthorized("the token is malformed") from None


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(_decoded(text))
    except orjson.JSONDecodeError:
        raise Unauthorized("the token is malformed") from None
    if not isinstance(value, dict):
        raise Unauthorized("the token is malformed")
    return value


def _name(claims: Mapping[str, Any], claim: str, absent: str = "") -> str:
    value = claims.get(claim, absent)
    if not isinstance(value, str) or not 0 < len(value) <= CLAIM_MAX:
        raise Unauthorized(f"the token must have {claim}, with at most {CLAIM_MAX} characters")
    return value


def _tenant(tenant_id: str) -> str:
    """Return the gateway's tenant for one of LibreChat's. It is never a tenant that the gateway's operator has named.

    A name that the gateway does not allow becomes a digest, after a dot in place of the hyphen, so that it can never be
    the same as another name.
    """
    if NAME.fullmatch(plain := f"librechat-{tenant_id}"):
        return plain
    return f"librechat.{hashlib.sha256(tenant_id.encode()).hexdigest()[:40]}"
