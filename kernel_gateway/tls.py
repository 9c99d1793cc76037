"""HTTPS: the server's certificate, given or of its own making."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: how long a certificate of our own making is valid, and when a new one is made before it no longer is
VALID = timedelta(days=365)
RENEW = timedelta(days=30)


def context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What the server speaks TLS with.

    Raises:
        OSError: a file cannot be read, or is none of its kind (ssl.SSLError is one).
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(certificate, key)
    return made


def own_certificate(directory: Path, names: frozenset[str]) -> tuple[Path, Path]:
    """A self-signed certificate for these names, kept over restarts: clients may have been told to trust it.

    Args:
        directory: where it is kept.
        names: host names and addresses it is for.

    Returns:
        the certificate's file, and its private key's, which only its user can read.
    """
    certificate, key = directory / "tls.pem", directory / "tls.key"
    if not (certificate.exists() and key.exists() and _is_good(certificate, names)):
        _make(certificate, key, names)
    return certificate, key


def _is_good(path: Path, names: frozenset[str]) -> bool:
    try:
        present = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        return False
    found = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    covered = {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}
    return names <= covered and present.not_valid_after_utc - datetime.now(UTC) > RENEW


def _make(certificate: Path, key: Path, names: frozenset[str]) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandboxed-kernel-gateway")])
    now = datetime.now(UTC)
    made = (
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
    key.unlink(missing_ok=True)
    key.touch(mode=0o600, exist_ok=False)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
