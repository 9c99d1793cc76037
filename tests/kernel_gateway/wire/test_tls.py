"""HTTPS: a certificate of the gateway, or a given one."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.wire import tls
from tests import fakes as waits
from tests import gateways
from tests.gateways import Gateway, terminal
from tests.kernel_gateway.calls import metric
from tests.tiers import some

NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", tls="true", allowed_hosts="kernels.example") as serving:
        yield serving


def names(certificate: Path) -> set[str]:
    """Return the host names and addresses of the first certificate in a file."""
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def test_a_client_that_trusts_the_certificate_can_connect(gateway: Gateway) -> None:
    assert gateway.url.startswith("https://127.0.0.1:")
    assert gateway.call("GET", "/v1/sessions").status_code == 200
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{gateway.url}/healthz", timeout=10)


def test_the_certificate_covers_each_name_that_the_gateway_answers_to(gateway: Gateway) -> None:
    assert names(gateway.state_dir / "tls.key") == NAMES | {"kernels.example"}
    where = urlsplit(gateway.url)
    context = ssl.create_default_context(cafile=gateway.state_dir / "tls.pem")
    for name in ("localhost", "127.0.0.1", "kernels.example"):
        with (
            socket.create_connection((where.hostname, where.port or 0), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=name) as connection,
        ):
            assert connection.version() in {"TLSv1.2", "TLSv1.3"}
    with (
        socket.create_connection((where.hostname, where.port or 0), timeout=10) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="other.example")


def test_only_the_gateways_user_can_read_the_key_and_clients_get_none(gateway: Gateway) -> None:
    assert stat.S_IMODE((gateway.state_dir / "tls.key").stat().st_mode) == 0o600
    assert b"PRIVATE KEY" in (gateway.state_dir / "tls.key").read_bytes()
    assert b"PRIVATE KEY" not in (gateway.state_dir / "tls.pem").read_bytes()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "CONNECT"])
def test_plain_http_is_told_to_use_https(gateway: Gateway, method: str) -> None:
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname, where.port or 0), timeout=10) as plain:
        plain.sendall(f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 9000}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: plain.recv(4096), b""))  # until the gateway closes
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"begins with https://" in body
    assert gateway.call("GET", "/healthz").status_code == 200


def test_a_client_that_breaks_off_its_handshake_gets_no_answer(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname, where.port or 0), timeout=10) as plain:
        plain.sendall(b"\x16\x03\x01\x00\x05hello")
        assert b"HTTP" not in b"".join(iter(lambda: plain.recv(4096), b""))


def test_old_versions_of_tls_are_refused(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)
    context = ssl.create_default_context(cafile=gateway.state_dir / "tls.pem")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((where.hostname, where.port or 0), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_a_restart_keeps_the_certificate_and_the_banner_names_it(tmp_path: Path) -> None:
    kept = []
    for _ in range(2):
        with (
            terminal() as (shown, there),
            gateways.gateway("process", tls="true", state_dir=str(tmp_path), stdout=there) as serving,
        ):
            assert serving.call("GET", "/v1/sessions").status_code == 200
            told = shown().splitlines()
            assert any(str(tmp_path / "tls.pem") in line for line in told)
            assert any(f"--cacert {tmp_path / 'tls.pem'} {serving.url}" in line for line in told)
            kept.append((tmp_path / "tls.pem").read_bytes())
    assert kept[0] == kept[1]


def test_a_given_certificate_is_served(tmp_path: Path) -> None:
    given = tls.own_certificate(tmp_path, NAMES)
    with gateways.gateway("process", tls_certificate=str(given)) as serving:
        assert serving.url.startswith("https://")
        assert serving.call("GET", "/v1/sessions").status_code == 200
        assert not (serving.state_dir / "tls.pem").exists()


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "CERTIFICATE_INTERVAL", 0.05)
    monkeypatch.setattr(tls, "VALID", timedelta(days=40))
    given, _ = tmp_path / "given.pem", made(tmp_path)
    given.write_bytes((tmp_path / "tls.key").read_bytes())
    state = tmp_path / "state"
    service = Service(
        Settings.model_validate({"isolation": "process", "state_dir": state, "port": 0, "tls_certificate": given})
    )
    await service.start()

    async def served() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", service.port))

    first = await served()
    with capture_logs() as logs:
        given.write_bytes(b"half a fi")
        await waits.until(lambda: any("cannot be used" in line["event"] for line in logs))
        assert await served() == first
        monkeypatch.setattr(tls, "VALID", timedelta(days=90))
        (tmp_path / "tls.key").unlink()
        made(tmp_path)
        given.write_bytes((tmp_path / "tls.key").read_bytes())
        await waits.until(lambda: any("renewed certificate is used" in line["event"] for line in logs))
    second = await served()
    assert second != first
    assert second in given.read_text()
    (left,) = (
        sample.value
        for metric in service.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "kernel_gateway_certificate_seconds"
    )
    assert left > timedelta(days=80).total_seconds(), "its end is that of the new one"
    await service.stop()


def test_the_log_names_the_certificate_that_clients_may_have(gateway: Gateway) -> None:
    (start,) = (line for line in gateway.logged() if line["event"] == "the gateway listens")
    assert start["certificate"] == str(gateway.state_dir / "tls.pem")


def test_the_time_until_the_certificate_ends_is_measured(gateway: Gateway) -> None:
    seconds = metric(gateway, "kernel_gateway_certificate_seconds")
    assert timedelta(days=364) < timedelta(seconds=seconds) <= tls.VALID


def test_a_certificate_ends_with_the_first_of_its_issuers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tls.own_certificate(tmp_path, NAMES)
    monkeypatch.setattr(tls, "VALID", timedelta(days=3))
    _, _, issuer = tls._made(NAMES)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(own.read_bytes() + issuer)
    assert tls.end_of(chain) == x509.load_pem_x509_certificate(issuer).not_valid_after_utc < tls.end_of(own)


# -- the file that is kept -------------------------------------------------------------------------------------


def made(directory: Path, wanted: frozenset[str] = NAMES) -> tuple[bytes, bytes]:
    """Return the contents of the two files after a gateway's start; check that a gateway can use them."""
    private = tls.own_certificate(directory, wanted)
    tls.context(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert wanted <= names(private)
    return private.read_bytes(), (directory / "tls.pem").read_bytes()


def test_a_good_certificate_is_kept(tmp_path: Path) -> None:
    first = made(tmp_path)
    assert made(tmp_path) == first
    assert made(tmp_path, frozenset({"localhost"})) == first


def test_a_certificate_that_lacks_a_name_is_replaced(tmp_path: Path) -> None:
    first = made(tmp_path)
    second = made(tmp_path, NAMES | {"kernels.example", "192.0.2.1", "2001:db8::1"})
    assert second != first
    assert made(tmp_path) == second


def test_a_certificate_that_is_about_to_expire_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tls, "VALID", tls.RENEW - timedelta(minutes=1))
        old = made(tmp_path)
        patched.setattr(tls, "VALID", tls.RENEW + timedelta(minutes=1))
        young = made(tmp_path)
    assert young != old
    assert made(tmp_path) == young


@pytest.mark.parametrize("name", ["tls.key", "tls.pem"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"another"])
def test_a_broken_certificate_is_replaced(tmp_path: Path, name: str, content: bytes | None) -> None:
    first = made(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    elif content == b"another":
        (tmp_path / "other").mkdir()
        tls.own_certificate(tmp_path / "other", NAMES)
        (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    else:
        (tmp_path / name).write_bytes(content)
    second = made(tmp_path)
    assert second[1] not in {first[1], content}
    assert second[0].endswith(second[1])


def test_a_certificate_is_not_its_own_issuer(tmp_path: Path) -> None:
    private, issuer = made(tmp_path)
    served, signed_by = x509.load_pem_x509_certificates(private)
    assert [signed_by] == x509.load_pem_x509_certificates(issuer)
    served.verify_directly_issued_by(signed_by)
    constraints = [each.extensions.get_extension_for_class(x509.BasicConstraints) for each in (served, signed_by)]
    assert [each.value.ca for each in constraints] == [False, True]
    assert private.count(b"PRIVATE KEY-----") == 2  # the beginning and the end of one


def test_a_key_that_others_could_read_is_not_kept(tmp_path: Path) -> None:
    first = made(tmp_path)
    (tmp_path / "tls.key").chmod(0o644)
    assert made(tmp_path) != first


def encrypted(key: bytes) -> bytes:
    """Return the key encrypted with a password."""
    private = serialization.load_pem_private_key(key, None)
    locked = serialization.BestAvailableEncryption(b"password")
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


@pytest.mark.parametrize("content", some([None, "an encrypted key", "no key", b"", b"garbage"], gate=2), ids=str)
def test_an_invalid_given_certificate_ends_the_start_with_a_message(
    tmp_path: Path, content: bytes | str | None
) -> None:
    given = tmp_path / "given.pem"
    if isinstance(content, bytes):
        given.write_bytes(content)
    elif content:
        tls.own_certificate(tmp_path, NAMES)
        key = encrypted((tmp_path / "tls.key").read_bytes()) if content == "an encrypted key" else b""
        given.write_bytes(key + (tmp_path / "tls.pem").read_bytes())
    settings = ("--isolation", "process", "--port", "0", "--state-dir", str(tmp_path / "state"))
    ended = subprocess.run(
        [sys.executable, "-m", "kernel_gateway", "serve", *settings, "--tls-certificate", str(given)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert str(given) in json.loads(ended.stderr.splitlines()[-1])["error"]
    assert "Traceback" not in ended.stderr
