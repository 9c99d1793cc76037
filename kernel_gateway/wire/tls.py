"""HTTPS: the server's certificate, given or self-signed."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: lifetime of a self-signed certificate, and the time before its end at which a new one is made
VALID = timedelta(days=365)
RENEW = timedelta(days=30)


def context(certificate: Path) -> ssl.SSLContext:
    """Return the TLS context of the server.

    Args:
        certificate: PEM file with the certificate, its issuers' certificates and its private key.

    Raises:
        OSError: when the file cannot be read, or is no such file.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(certificate, password="")  # otherwise OpenSSL asks for one on the terminal
    except OSError as error:
        raise OSError(f"{certificate} is no readable PEM file with a certificate and its key: {error}") from None
    return made


def own_certificate(directory: Path, names: frozenset[str]) -> Path:
    """Return a self-signed certificate for these names, kept over restarts because clients may trust it already.

    Args:
        directory: directory of the files: `tls.key` with certificate and key, `tls.pem` without the key for clients.
        names: host names and addresses of the certificate.

    Returns:
        the path of the file with the key, which only its user can read.
    """
    private, public = directory / "tls.key", directory / "tls.pem"
    if not _is_good(private, public, names):
        key, certificate = _made(names)
        private.unlink(missing_ok=True)
        private.touch(mode=0o600, exist_ok=False)
        private.write_bytes(key + certificate)
        public.write_bytes(certificate)
    return private


def _is_good(private: Path, public: Path, names: frozenset[str]) -> bool:
    try:
        context(private)
        if private.stat().st_mode & 0o077 or not private.read_bytes().endswith(public.read_bytes()):
            return False
        present = x509.load_pem_x509_certificate(public.read_bytes())
        found = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    covered = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    return names <= covered and present.not_valid_after_utc - datetime.now(UTC) > RENEW


def _made(names: frozenset[str]) -> tuple[bytes, bytes]:
    """Make a private key and its certificate, in PEM."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandboxed-kernel-gateway")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key, certificate.public_bytes(serialization.Encoding.PEM)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
