"""TLS settings of the listeners: the user's certificate, or a development one made at start."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pumphouse.clock import SystemClock
from pumphouse.errors import DataDirectoryError, OptionError
from pumphouse.hub.disk_errors import is_disk_failure, todo
from pumphouse.hub.options import CertificateFiles
from pumphouse.private_files import create_private

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = ("", "0.0.0.0", "::")  # to listen on all interfaces; clients cannot use them


@dataclass(frozen=True, slots=True)
class Tls:
    """What a listener needs for TLS."""

    context: ssl.SSLContext
    ca_file: Path | None = None  # for clients to trust; None if the certificate is the user's


def tls_from_files(files: CertificateFiles) -> Tls:
    """TLS with the user's certificate and key."""
    certificate, key = files
    context = server_context()
    try:
        # For an encrypted key OpenSSL would ask for a password on the terminal. The empty password
        # makes it fail instead.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as failure:  # includes SSLError
        raise OptionError(
            f"cannot use the certificate {certificate} with key {key}: "
            f"{failure.strerror or failure}"
        ) from None
    return Tls(context)


def development_tls(host: str, directory: Path) -> Tls:
    """TLS with a new certificate, signed by the authority that is kept in a directory."""
    try:
        from pumphouse.hub.listeners import certificates
    except ImportError:
        raise OptionError(
            "a development certificate needs the package cryptography: "
            "pip install 'pumphouse[tls]', or give your own certificate=(cert, key)"
        ) from None
    now = SystemClock().now()  # clients check certificates against real time
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = certificates.ensure_authority(directory, now)
    except OSError as failure:
        raise unusable(directory, failure) from None
    server = certificates.make_server_certificate(authority, server_names(host), now)
    context = server_context()
    load(context, server.certificate_pem + server.key_pem)
    return Tls(context, directory / certificates.CA_FILE)


def unusable(directory: Path, failure: OSError) -> Exception:
    text = f"cannot use the certificate authority in {directory}: {failure.strerror}"
    if is_disk_failure(failure):
        return DataDirectoryError(f"{text}; {todo(failure)}")
    return OptionError(text)


def server_names(host: str) -> Iterable[str]:
    """The names and addresses of a hub that listens on `host`."""
    own_name = socket.gethostname() if host in ANY_ADDRESS else host
    return dict.fromkeys([*LOCAL_NAMES, own_name])


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load certificate and key through a temporary file: a context reads them only from files."""
    try:
        with tempfile.TemporaryDirectory(prefix="pumphouse-") as directory:
            path = Path(directory) / "server.pem"
            with open(create_private(path), "wb") as file:
                file.write(pem)
            context.load_cert_chain(path)
    except OSError as failure:
        raise DataDirectoryError(
            f"cannot write the hub's certificate to a temporary file: {failure.strerror}; "
            f"{todo(failure, 'set TMPDIR to another directory')}"
        ) from None
