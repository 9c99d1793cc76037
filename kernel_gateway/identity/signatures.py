"""Verifies requests that are signed with an access key, for both algorithms of Alibaba Cloud's clients.

AGENTRUN4-HMAC-SHA256 signs requests of the data plane. It does not cover the body, and has no nonce.
ACS3-HMAC-SHA256 signs requests of the control plane. It covers the body through the digest in `x-acs-content-sha256`,
and has a nonce that may be used once. Sources: the Python packages `agentrun-sdk` and `alibabacloud-tea-openapi`.

This module stores no keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote_plus

from tornado.httputil import HTTPServerRequest

#: maximum seconds between a request's date and the gateway's clock
SKEW = 900
BODY_DIGEST = "X-Acs-Content-Sha256"
NONCE = "X-Acs-Signature-Nonce"
UNSIGNED = "UNSIGNED-PAYLOAD"

_AGENTRUN4 = "AGENTRUN4-HMAC-SHA256"
_ACS3 = "ACS3-HMAC-SHA256"
_HEADER = re.compile(r"(\S+) Credential=([^,]*),\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})")
#: headers that must be signed; otherwise a signature could be used for another host, or forever
_ALWAYS = {"host", "x-acs-date"}
_ACS3_ALWAYS = {BODY_DIGEST.lower(), NONCE.lower()}


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a request, from its headers."""

    algorithm: str
    #: id of the access key whose secret made the signature
    access_key: str
    #: date, region, product and kind, from which AGENTRUN4 derives its key
    scope: tuple[str, ...]
    #: names of the signed headers, in lower case
    signed: tuple[str, ...]
    value: str
    #: time until which the request is accepted, in seconds since 1970
    until: float = 0.0
    #: None if the algorithm has no nonce
    nonce: str | None = None

    @classmethod
    def of(cls, request: HTTPServerRequest) -> Signature | None:
        """Return the request's signature, or None if it has no signature that is complete and current."""
        for name, algorithm in (("Agentrun-Authorization", _AGENTRUN4), ("Authorization", _ACS3)):
            found = _HEADER.fullmatch(request.headers.get(name, ""))
            if found and found[1] == algorithm:
                access_key, *scope = found[2].split("/")
                signature = cls(algorithm, access_key, tuple(scope), tuple(found[3].split(";")), found[4])
                return signature._current(request) if signature._is_complete(request) else None
        return None

    def _is_complete(self, request: HTTPServerRequest) -> bool:
        """Return True if the signature covers the required headers."""
        required = _ALWAYS | _ACS3_ALWAYS if self.algorithm == _ACS3 else _ALWAYS
        return set(self.signed) >= required and all(name in request.headers for name in self.signed)

    def _current(self, request: HTTPServerRequest) -> Signature | None:
        """Return the signature with `until` and `nonce` set, or None if its date is too old or too new."""
        try:
            date = datetime.strptime(request.headers["X-Acs-Date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            return None
        if abs((datetime.now(UTC) - date).total_seconds()) > SKEW:
            return None
        nonce = request.headers[NONCE] if self.algorithm == _ACS3 else None
        return replace(self, until=date.timestamp() + SKEW, nonce=nonce)

    def is_of(self, request: HTTPServerRequest, secret: str) -> bool:
        """Return True if the signature was made with this secret. The comparison takes constant time."""
        # If the client's endpoint was configured with two schemes, one of them is a part of the signed Host header.
        hosts = (request.headers.get("Host", ""), f"http://{request.headers.get('Host', '')}")
        made = [self._made(request, host, secret) for host in hosts]
        right = [hmac.compare_digest(value, self.value) for value in made]
        return any(right)

    def _made(self, request: HTTPServerRequest, host: str, secret: str) -> str:
        values = {name: host if name == "host" else request.headers[name].strip() for name in self.signed}
        agentrun = self.algorithm == _AGENTRUN4
        canonical = "\n".join(
            (
                request.method or "",
                request.path,
                (_query_agentrun4 if agentrun else _query_acs3)(request.query),
                *(f"{name}:{values[name]}" for name in sorted(self.signed)),
                "",
                ";".join(self.signed),
                UNSIGNED if agentrun else request.headers[BODY_DIGEST],
            )
        )
        text = f"{self.algorithm}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"aliyun_v4{secret}".encode() if agentrun else secret.encode()
        for part in self.scope if agentrun else ():
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, text.encode(), "sha256").hex()


def _pairs(query: str) -> list[tuple[str, str]]:
    """Return the names and values of a query, sorted and encoded.

    The clients' signers leave out parts without `=`, and one signer does not encode names. This function includes all
    parts and encodes all names: otherwise the gateway would accept parts of a query that were not signed. The clients
    send no queries with such parts or names.
    """
    parts = (part.partition("=") for part in query.split("&") if part)
    plain = sorted((unquote_plus(name), unquote_plus(value)) for name, _, value in parts)
    return [(_encoded(name), _encoded(value)) for name, value in plain]


def _encoded(text: str) -> str:
    return quote(text, safe="~")


def _query_agentrun4(query: str) -> str:
    return "&".join(f"{name}={value}" for name, value in _pairs(query))


def _query_acs3(query: str) -> str:
    return "&".join(f"{name}={value}" if value else name for name, value in _pairs(query))
