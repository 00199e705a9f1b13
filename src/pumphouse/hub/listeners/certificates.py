"""Development certificates: a small certificate authority, and the certificates it signs.

The authority is created once and kept in a directory, so that clients need to trust its `ca.pem`
only once. The hub's own certificate is created at every start, and its key is never stored.

    DIR/ca.pem       the authority's certificate, for clients to trust
    DIR/ca-key.pem   its key, mode 0600, followed by its certificate

This is the only module that needs the package `cryptography`; tls.py imports it on demand.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pumphouse.errors import DataDirectoryError
from pumphouse.logs import line
from pumphouse.private_files import make_private

log = logging.getLogger("pumphouse.hub")

CA_FILE, CA_KEY_FILE = "ca.pem", "ca-key.pem"
CA_DAYS = 3650
SERVER_DAYS = 397  # the longest validity that every client accepts
RENEW_DAYS = 30  # an authority that expires sooner is replaced
BACKDATED = timedelta(days=1)  # certificates are valid from yesterday on, because clocks differ


@dataclass(frozen=True, slots=True)
class KeyedCertificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def ensure_authority(directory: Path, now: float) -> KeyedCertificate:
    """The authority kept in a directory; a new one if there is none, or it expires soon."""
    path = directory / CA_KEY_FILE
    authority = load_authority(path)
    if authority is None or expires_soon(authority, now):
        if authority is not None:
            path.unlink(missing_ok=True)
        write_if_absent(path, make_authority(now))
        authority = load_authority(path)
        assert authority is not None
    write_public(directory / CA_FILE, authority.certificate_pem)
    return authority


def expires_soon(authority: KeyedCertificate, now: float) -> bool:
    valid_for = authority.certificate.not_valid_after_utc - datetime.fromtimestamp(now, UTC)
    return valid_for < timedelta(days=RENEW_DAYS)


def load_authority(path: Path) -> KeyedCertificate | None:
    try:
        warn_if_exposed(path)
        pem = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        key = serialization.load_pem_private_key(pem, None)
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as failure:
        raise DataDirectoryError(
            f"{path} is not a certificate authority ({failure}); delete it to get a new one"
        ) from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return KeyedCertificate(certificate, key)


def warn_if_exposed(path: Path) -> None:
    """Make the key private. A user who has read it can make certificates that our clients trust."""
    mode = make_private(path)
    if mode is not None:
        todo = "delete it to get a new authority if other users have access to this machine"
        log.warning("%s", line("key_file_exposed", file=path, mode=f"{mode:o}", todo=todo))


def write_if_absent(path: Path, authority: KeyedCertificate) -> None:
    """Write the authority, unless another hub has just written one.

    Key and certificate share a file, so that no process reads one without the other.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{id(authority)}")
    try:
        write_new(temporary, authority.key_pem + authority.certificate_pem, 0o600)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_public(path: Path, pem: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{id(pem)}")
    write_new(temporary, pem, 0o644)
    temporary.replace(path)


def write_new(path: Path, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# -- making certificates --------------------------------------------------------------------------


def make_authority(now: float) -> KeyedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = common_name("Pumphouse development CA")
    usage = key_usage(digital_signature=True, key_cert_sign=True, crl_sign=True)
    builder = (
        certificate_builder(name, name, key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return KeyedCertificate(builder.sign(key, hashes.SHA256()), key)


def make_server_certificate(
    authority: KeyedCertificate, names: Iterable[str], now: float
) -> KeyedCertificate:
    """A certificate for a hub with these host names and addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    issuer_key_id = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        certificate_builder(
            common_name("Pumphouse hub"), issuer.subject, key.public_key(), now, SERVER_DAYS
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName(map(general_name, names)), critical=False)
    )
    return KeyedCertificate(builder.sign(authority.key, hashes.SHA256()), key)


def certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: float,
    days: int,
) -> x509.CertificateBuilder:
    """The fields that both kinds of certificate share."""
    start = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - BACKDATED)
        .not_valid_after(start + timedelta(days=days) - BACKDATED)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def key_usage(
    digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
