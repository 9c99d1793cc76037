"""Signed requests at the wire: the tests' own signer, and every change that makes its signature wrong."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, unquote_plus, urlsplit

import pytest

from kernel_gateway.identity.nonces import Nonces
from sessions.model.errors import QuotaExceeded
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.agentrun import CONTROL
from tests.kernel_gateway.calls import Answer, failure, raw

SECRETS = {"id-of-alice": "secret-of-alice", "id-of-bob": "secret-of-bob"}
#: headers that are signed whenever they are sent
COVERED = ("host", "x-acs-date", "x-acs-content-sha256", "x-acs-signature-nonce")
Headers = tuple[tuple[str, str | bytes], ...]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    pairs = ",".join(f"{name.removeprefix('id-of-')}:{name}:{secret}" for name, secret in SECRETS.items())
    with gateways.gateway("process", access_keys=pairs) as serving:
        yield serving


def now(offset: float = 0.0) -> str:
    """Return a time in the format of signed requests."""
    return (datetime.now(UTC) + timedelta(seconds=offset)).strftime("%Y-%m-%dT%H:%M:%SZ")


def mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Request:
    """A request before it is signed. Source: the wire protocol of the SDK's signers."""

    method: str = "GET"
    path: str = f"{CONTROL}/templates"
    query: str = ""
    body: bytes = b""
    access_key: str = "id-of-alice"
    sk: str = "secret-of-alice"
    acs3: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    #: headers that are signed besides the usual ones
    more: tuple[str, ...] = ()
    #: headers that should be signed but are not
    left_out: frozenset[str] = frozenset()

    @property
    def target(self) -> str:
        return self.path + (f"?{self.query}" if self.query else "")

    def canonical_query(self) -> str:
        pairs = (part.split("=", 1) for part in self.query.split("&") if "=" in part)
        plain = sorted((unquote_plus(name), unquote_plus(value)) for name, value in pairs)
        if self.acs3:
            return "&".join(f"{name}={quote(value, safe='~')}" for name, value in plain)
        return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in plain)

    def signed(self, gateway: Gateway) -> dict[str, str]:
        """Return the request's headers with the signature."""
        content = digest(self.body) if self.acs3 else "UNSIGNED-PAYLOAD"
        sent = {"host": urlsplit(gateway.url).netloc, "x-acs-date": now(), "x-acs-content-sha256": content}
        if self.acs3:
            sent["x-acs-signature-nonce"] = secrets.token_hex(16)
        sent |= self.headers
        names = sorted(({*COVERED} & {*sent} | {*self.more}) - self.left_out)
        lines = "".join(f"{name}:{sent[name]}\n" for name in names)
        listed = ";".join(names)
        parts = (self.method, self.path, self.canonical_query(), lines, listed, sent["x-acs-content-sha256"])
        canonical = "\n".join(parts)
        if self.acs3:
            value = mac(self.sk.encode(), f"ACS3-HMAC-SHA256\n{digest(canonical.encode())}").hex()
            line = f"ACS3-HMAC-SHA256 Credential={self.access_key},SignedHeaders={listed},Signature={value}"
            return sent | {"authorization": line}
        key = f"aliyun_v4{self.sk}".encode()
        scope = (sent["x-acs-date"][:10].replace("-", ""), "cn-hangzhou", "agentrun", "aliyun_v4_request")
        for part in scope:
            key = mac(key, part)
        value = mac(key, f"AGENTRUN4-HMAC-SHA256\n{digest(canonical.encode())}").hex()
        credential = "/".join((self.access_key, *scope))
        line = f"AGENTRUN4-HMAC-SHA256 Credential={credential},SignedHeaders={listed},Signature={value}"
        return sent | {"agentrun-authorization": line}


def send(gateway: Gateway, request: Request, headers: dict[str, str]) -> Answer:
    """Send a request with the given headers, which may have been signed for another request."""
    carried: Headers = tuple((name.title(), value) for name, value in headers.items())
    return raw(gateway, request.method, request.target, headers=carried, body=request.body or None)


def asked(gateway: Gateway, request: Request) -> Answer:
    """Sign and send."""
    return send(gateway, request, request.signed(gateway))


def status(answer: Answer) -> int:
    assert answer.status_code != 401 or failure(answer) == (401, "SB020")
    return answer.status_code


both = pytest.mark.parametrize("acs3", [False, True], ids=["AGENTRUN4", "ACS3"])
QUERIES = [
    "",
    "pageSize=10&pageNumber=1",
    "templateType=CodeInterpreter&pageNumber=1",
    "x=gr%C3%BC%C3%9Fe+und+%E6%97%A5%E6%9C%AC",
    "x=a%2Fb%3Dc%26d&y=%2B&z=~-._",
    "x=a=b",
]


@both
@pytest.mark.parametrize("query", QUERIES)
def test_a_request_signed_as_clients_sign_is_accepted(gateway: Gateway, *, acs3: bool, query: str) -> None:
    assert status(asked(gateway, Request(acs3=acs3, query=query))) == 200


@both
def test_each_access_key_belongs_to_its_tenant(gateway: Gateway, *, acs3: bool) -> None:
    gateway.call("POST", f"{CONTROL}/templates", tenant="bob", json={"templateName": "of-bob"})
    path = f"{CONTROL}/templates/of-bob"
    bob = Request(acs3=acs3, path=path, access_key="id-of-bob", sk="secret-of-bob")
    assert status(asked(gateway, bob)) == 200
    assert status(asked(gateway, Request(acs3=acs3, path=path))) == 404


@both
@pytest.mark.parametrize("path", ["/sandboxes", f"{CONTROL}/sandboxes"])
def test_both_planes_accept_both_algorithms(gateway: Gateway, *, acs3: bool, path: str) -> None:
    assert status(asked(gateway, Request(acs3=acs3, path=path))) == 200


@both
def test_more_headers_may_be_signed(gateway: Gateway, *, acs3: bool) -> None:
    extra = {"x-acs-security-token": "sts", "accept": "application/json", "x-acs-signature-nonce": secrets.token_hex()}
    request = Request(acs3=acs3, headers=extra, more=tuple(extra))
    headers = request.signed(gateway)
    assert status(send(gateway, request, headers | {"x-acs-security-token": "other"})) == 401
    assert status(send(gateway, request, headers)) == 200


@both
def test_a_host_with_a_scheme_is_verified_as_it_was_sent(gateway: Gateway, *, acs3: bool) -> None:
    host = f"http://{urlsplit(gateway.url).netloc}"
    assert status(asked(gateway, Request(acs3=acs3, headers={"host": host}))) == 200
    wrong = Request(acs3=acs3, headers={"host": host}, sk="secret-of-bob")
    assert status(asked(gateway, wrong)) == 401


def test_bodies_are_accepted_with_both_algorithms(gateway: Gateway) -> None:
    for number, acs3 in enumerate((False, True)):
        body = json.dumps({"templateName": f"signed-{number}"}).encode()
        assert status(asked(gateway, Request("POST", body=body, acs3=acs3))) == 200


# -- wrong -----------------------------------------------------------------------------------------------------

GOOD = Request(query="pageNumber=1&pageSize=5")
#: changes of the signer, the signed headers or the date before signing
SIGNED_WRONG: dict[str, dict[str, Any]] = {
    "another secret": {"sk": "secret-of-nobody"},
    "an empty secret": {"sk": ""},
    "an unknown id": {"access_key": "id-of-nobody"},
    "an unknown id and no secret": {"access_key": "id-of-nobody", "sk": ""},
    "no id": {"access_key": "", "sk": ""},
    "another tenant's secret": {"sk": "secret-of-bob"},
    "another tenant's id": {"access_key": "id-of-bob"},
    "no host": {"left_out": frozenset({"host"})},
    "no date": {"left_out": frozenset({"x-acs-date"})},
    "an old date": {"headers": {"x-acs-date": now(-3600)}},
    "a future date": {"headers": {"x-acs-date": now(7200)}},
    "a date of another form": {"headers": {"x-acs-date": datetime.now(UTC).isoformat()}},
    "no date at all": {"headers": {"x-acs-date": ""}},
}


@both
@pytest.mark.parametrize("wrong", SIGNED_WRONG.values(), ids=SIGNED_WRONG)
def test_a_wrong_signature_is_refused(gateway: Gateway, *, acs3: bool, wrong: dict[str, Any]) -> None:
    good = replace(GOOD, acs3=acs3)
    assert status(asked(gateway, good)) == 200
    assert status(asked(gateway, replace(good, **wrong))) == 401


def test_the_digest_of_the_body_must_be_signed_with_acs3(gateway: Gateway) -> None:
    request = replace(GOOD, acs3=True, left_out=frozenset({"x-acs-content-sha256"}))
    assert status(asked(gateway, request)) == 401


CHANGED: dict[str, dict[str, Any]] = {
    "the method": {"method": "DELETE"},
    "the path": {"path": f"{CONTROL}/sandboxes"},
    "a value": {"query": "pageNumber=1&pageSize=6"},
    "one pair less": {"query": "pageNumber=1"},
    "no query": {"query": ""},
    "one pair more": {"query": "pageNumber=1&pageSize=5&x=y"},
    "a name without a value": {"query": "pageNumber=1&pageSize=5&pageSize"},
    "a pair within a name": {"query": "pageNumber%3D1%26pageSize=5"},
    "a pair within a value": {"query": "pageNumber=1%26pageSize=5"},
}


@both
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_request_that_was_changed_after_signing_is_refused(
    gateway: Gateway, *, acs3: bool, change: dict[str, Any]
) -> None:
    request = replace(GOOD, acs3=acs3)
    headers = request.signed(gateway)
    assert status(send(gateway, replace(request, **change), headers)) == 401
    assert status(send(gateway, request, headers)) == 200


@both
@pytest.mark.parametrize("header", ["host", "x-acs-date"])
def test_a_changed_header_that_was_signed_is_refused(gateway: Gateway, *, acs3: bool, header: str) -> None:
    request = replace(GOOD, acs3=acs3)
    headers = request.signed(gateway)
    other = {"host": f"localhost:{urlsplit(gateway.url).port}", "x-acs-date": now(30)}
    assert status(send(gateway, request, headers | {header: other[header]})) == 401
    # The other value is valid when it is signed.
    assert status(asked(gateway, replace(request, headers={header: other[header]}))) == 200


def test_another_body_than_the_signed_one_is_refused_with_acs3(gateway: Gateway) -> None:
    request = Request("POST", body=b'{"templateName": "covered"}', acs3=True)
    headers = request.signed(gateway)
    other = b'{"templateName": "changed"}'
    assert status(send(gateway, replace(request, body=other), headers)) == 401
    changed_too = headers | {"x-acs-content-sha256": digest(other)}
    assert status(send(gateway, replace(request, body=other), changed_too)) == 401
    names = [item["templateName"] for item in asked(gateway, Request()).json["data"]["items"]]
    assert "changed" not in names
    assert status(asked(gateway, request)) == 200


def test_the_digest_of_the_body_may_be_written_in_any_case(gateway: Gateway) -> None:
    body = b'{"templateName": "spelled"}'
    spelled = Request("POST", body=body, acs3=True, headers={"x-acs-content-sha256": digest(body).upper()})
    other = replace(spelled, body=b'{"templateName": "misspelled"}')
    assert status(send(gateway, other, spelled.signed(gateway))) == 401
    assert status(send(gateway, spelled, spelled.signed(gateway))) == 200


def test_a_nonce_is_good_once_with_acs3(gateway: Gateway) -> None:
    request = replace(GOOD, acs3=True)
    headers = request.signed(gateway)
    assert status(send(gateway, request, headers | {"x-acs-date": now(1)})) == 401  # which uses no nonce
    assert status(send(gateway, request, headers)) == 200
    assert status(send(gateway, request, headers)) == 401
    nonce = {"x-acs-signature-nonce": headers["x-acs-signature-nonce"]}
    assert status(asked(gateway, replace(request, headers=nonce))) == 401  # also in another request
    bob = replace(request, headers=nonce, access_key="id-of-bob", sk="secret-of-bob")
    assert status(asked(gateway, bob)) == 200
    assert status(asked(gateway, replace(request, left_out=frozenset(nonce)))) == 401


def test_nonces_are_kept_as_long_as_their_requests_are_accepted_and_in_a_bounded_number() -> None:
    clock = Mock(return_value=1000.0)
    nonces = Nonces(clock, most=2)
    assert [nonces.use("id", "a", 1010.0), nonces.use("id", "b", 1005.0)] == [True, True]
    assert [nonces.use("id", "a", 1010.0), nonces.use("other", "a", 1010.0)] == [False, True]
    with pytest.raises(QuotaExceeded):
        nonces.use("id", "c", 1010.0)
    clock.return_value = 1006.0
    assert [nonces.use("id", "c", 1010.0), nonces.use("id", "a", 1010.0)] == [True, False]


@pytest.mark.parametrize("part", ["/20200101/", "/cn-beijing/", "/other/", "/aliyun_v3_request"])
def test_a_changed_scope_is_refused(gateway: Gateway, part: str) -> None:
    headers = GOOD.signed(gateway)
    scope = headers["agentrun-authorization"].partition("Credential=")[2].partition(",")[0].split("/")
    kinds = {"/20200101/": 1, "/cn-beijing/": 2, "/other/": 3, "/aliyun_v3_request": 4}
    changed = [*scope]
    changed[kinds[part]] = part.strip("/")
    line = headers["agentrun-authorization"].replace("/".join(scope), "/".join(changed))
    assert status(send(gateway, GOOD, headers)) == 200
    assert status(send(gateway, GOOD, headers | {"agentrun-authorization": line})) == 401


MALFORMED = [
    "",
    "{algorithm}",
    "{algorithm} ",
    "{algorithm} Credential=,SignedHeaders=,Signature=",
    "{algorithm} Credential={id},SignedHeaders=host;x-acs-date,Signature=",
    "{algorithm} Credential={id},SignedHeaders=host;x-acs-date;nothing,Signature={zeros}",
    "{algorithm} Credential={id},SignedHeaders=host;x-acs-date,Signature={zeros}",
    "{algorithm} Credential={id},SignedHeaders=;;host;x-acs-date;;,Signature={zeros}",
    "{algorithm} SignedHeaders=host;x-acs-date,Credential={id},Signature={zeros}",
    "{algorithm} Credential=////////,SignedHeaders=host;x-acs-date,Signature={zeros}",
    "{algorithm} Credential=" + "x/" * 10_000 + ",SignedHeaders=host;x-acs-date,Signature={zeros}",
    "{algorithm} Credential={id},SignedHeaders=" + "host;" * 4000 + "x-acs-date,Signature={zeros}",
    "NONE Credential={id},SignedHeaders=host;x-acs-date,Signature={zeros}",
    "\xe9" * 100,
]


@both
@pytest.mark.parametrize("line", MALFORMED, ids=lambda line: ascii(line)[:60])
def test_a_malformed_signature_is_refused(gateway: Gateway, *, acs3: bool, line: str) -> None:
    algorithm = "ACS3-HMAC-SHA256" if acs3 else "AGENTRUN4-HMAC-SHA256"
    name = "Authorization" if acs3 else "Agentrun-Authorization"
    line = line.replace("{algorithm}", algorithm).replace("{id}", "id-of-alice").replace("{zeros}", "0" * 64)
    headers: Headers = ((name, line.encode("latin-1")), ("X-Acs-Date", now()), ("X-Acs-Content-Sha256", digest(b"")))
    assert status(raw(gateway, "GET", GOOD.target, headers=headers)) == 401


@both
def test_a_header_that_is_sent_twice_is_refused(gateway: Gateway, *, acs3: bool) -> None:
    request = replace(GOOD, acs3=acs3)

    def carried() -> Headers:
        return tuple((name.title(), value) for name, value in request.signed(gateway).items())

    assert status(raw(gateway, "GET", request.target, headers=carried())) == 200
    for number, (name, _) in enumerate(carried()):
        for kind in ("behind", "before", "same"):
            good = carried()
            headers = {"behind": (*good, (name, "x")), "before": ((name, "x"), *good), "same": (*good, good[number])}
            answer = raw(gateway, "GET", request.target, headers=headers[kind])
            assert answer.status_code in {400, 401, 421}, (name, answer)


def test_a_signature_is_accepted_by_the_agentrun_dialect_only(gateway: Gateway) -> None:
    for acs3 in (False, True):
        for path in ("/v1/sessions", "/api/kernels"):
            assert raw(gateway, "GET", path).status_code == 200
            assert status(asked(gateway, Request(acs3=acs3, path=path))) == 401


# -- other credentials -----------------------------------------------------------------------------------------


def token(gateway: Gateway, tenant: str) -> str:
    """Return an access token, which clients before 0.0.28 request."""
    answer = gateway.call("GET", f"{CONTROL}/agents/accessToken?resourceId=x&resourceType=sandbox", tenant=tenant)
    found: str = answer.json()["data"]["accessToken"]
    return found


@pytest.mark.parametrize("header", ["X-API-Key", "X-Acs-Security-Token", "Agentrun-Access-Token", "Authorization"])
@pytest.mark.parametrize("tenant", KEYS)
def test_a_key_is_accepted_in_each_header_that_clients_use(gateway: Gateway, header: str, tenant: str) -> None:
    path = f"{CONTROL}/templates/key-{tenant}-{header.lower()}"
    gateway.call("POST", f"{CONTROL}/templates", tenant=tenant, json={"templateName": path.rpartition("/")[2]})
    (other,) = set(KEYS) - {tenant}
    scheme = "Bearer " if header == "Authorization" else ""
    for key, expected in ((KEYS[tenant], 200), (token(gateway, tenant), 200), (KEYS[other], 404), ("nobodys", 401)):
        assert status(raw(gateway, "GET", path, headers=((header, scheme + key),))) == expected


def test_a_session_token_is_a_key_whatever_signs_the_request(gateway: Gateway) -> None:
    for acs3 in (False, True):
        extra = {"x-acs-security-token": KEYS["bob"]}
        request = Request(acs3=acs3, access_key="any", sk="any", headers=extra, more=tuple(extra))
        assert status(asked(gateway, request)) == 200
        nobodys = replace(request, headers={"x-acs-security-token": "nobodys-key"})
        assert status(asked(gateway, nobodys)) == 401


def test_a_token_is_given_to_callers_with_a_key_or_a_signature(gateway: Gateway) -> None:
    path = f"{CONTROL}/agents/accessToken"
    assert status(raw(gateway, "GET", path, headers=())) == 401
    given = [asked(gateway, Request(acs3=True, path=path)).json["data"]["accessToken"] for _ in range(2)]
    given += [token(gateway, tenant) for tenant in ("alice", "alice", "bob")]
    assert [given.index(each) for each in given] == [0, 0, 2, 2, 4]  # one for each key
    assert not {*given} & {*KEYS.values()}


def test_neither_keys_nor_secrets_are_logged(gateway: Gateway) -> None:
    asked(gateway, replace(GOOD, sk="secret-of-bob"))
    log = gateway.log.read_text()
    assert "id-of-alice" not in log
    for secret in (*SECRETS.values(), *KEYS.values(), token(gateway, "alice")):
        assert secret not in log
