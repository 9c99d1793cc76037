"""HTTPS: loads the operator's certificate, or makes one."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

log = structlog.get_logger()

#: lifetime of a certificate that the gateway makes, and the time before its end at which a new one is made
VALID = timedelta(days=365)
RENEW = timedelta(days=30)


def context(certificate: Path) -> ssl.SSLContext:
    """Return the TLS context of the server.

    Args:
        certificate: PEM file with the certificate, its issuers' certificates and its private key.

    Raises:
        OSError: when the file cannot be read, or does not contain a certificate and its key.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(certificate, password="")  # otherwise OpenSSL asks for one on the terminal
    except OSError as error:
        raise OSError(f"{certificate} is no readable PEM file with a certificate and its key: {error}") from None
    return made


class ServedCertificate:
    """The certificate that the server shows, as its file was when it was last loaded without an error."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Args:
            path: PEM file with the certificate, its issuers' certificates and its private key.

        Raises:
            OSError: when the file cannot be read, or does not contain a certificate and its key.
        """
        self._path = path
        self._seen = _version(path)
        self.context = context(path)
        self.end = end_of(path)

    async def load_when_renewed(self, interval: float) -> None:
        """Wait, and load the file if it is another one now: connections that are made later get the new certificate.

        With a file that is not usable, for example because it is being written, the present certificate stays.

        Args:
            interval: seconds to wait.
        """
        await asyncio.sleep(interval)
        version = _version(self._path)
        if version == self._seen:
            return
        self._seen = version
        try:
            context(self._path)  # a failed load would leave the server's context with half of the new file
            end = end_of(self._path)
        except (OSError, ValueError) as error:
            log.warning("the renewed certificate cannot be used; the present one stays", reason=str(error))
            return
        self.context.load_cert_chain(self._path, password="")
        self.end = end
        log.info("the renewed certificate is used", certificate=str(self._path), end=end.isoformat())


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def end_of(certificate: Path) -> datetime:
    """Return the time at which the first of a file's certificates ends: its own, or that of an issuer.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when it contains no certificate.
    """
    return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(certificate.read_bytes()))


def own_certificate(directory: Path, names: frozenset[str]) -> Path:
    """Return the gateway's own certificate for these names. Make one if there is none, or it is about to expire.

    Restarts keep the certificate, because clients may already trust its issuer. The issuer is made together with the
    certificate, and its private key is thrown away, so it signs nothing else. OpenSSL would accept a self-signed
    certificate, but rustls, which E2B's newest SDK uses, refuses it ("CaUsedAsEndEntity").

    Args:
        directory: directory of the files: `tls.key` with the key, the certificate and the issuer, and `tls.pem` with
            the issuer for clients.
        names: host names and IP addresses of the certificate.

    Returns:
        the path of `tls.key`, which only its owner can read.
    """
    private, public = directory / "tls.key", directory / "tls.pem"
    if not _is_good(private, public, names):
        key, certificate, issuer = _made(names)
        private.unlink(missing_ok=True)
        private.touch(mode=0o600, exist_ok=False)
        private.write_bytes(key + certificate + issuer)
        public.write_bytes(issuer)
    return private


def _is_good(private: Path, public: Path, names: frozenset[str]) -> bool:
    try:
        context(private)
        present, issuer = x509.load_pem_x509_certificates(private.read_bytes())
        if private.stat().st_mode & 0o077 or public.read_bytes() != issuer.public_bytes(serialization.Encoding.PEM):
            return False
        present.verify_directly_issued_by(issuer)
        found = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    covered = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    return names <= covered and present.not_valid_after_utc - datetime.now(UTC) > RENEW


def _made(names: frozenset[str]) -> tuple[bytes, bytes, bytes]:
    """Make a private key, its certificate and the issuer's certificate. Return the three in PEM."""
    private, issuer_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer_name = _subject("sandboxed-kernel-gateway: issuer of its certificate")
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    issuer = (
        _certificate(issuer_name, issuer_name, issuer_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    certificate = (
        _certificate(_subject("sandboxed-kernel-gateway"), issuer_name, private)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key, certificate.public_bytes(serialization.Encoding.PEM), issuer.public_bytes(serialization.Encoding.PEM)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
