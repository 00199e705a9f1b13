"""TLS for the hub's doors: your own certificate, or a development one made at start.

options -> prepare -> Tls(context, ca_file) -> doors.py
"""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pumphouse.clock import SystemClock
from pumphouse.errors import OptionError

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("", "0.0.0.0", "::")  # addresses to listen on; nobody can connect to them

CertificateFiles = tuple[str | Path, str | Path]


@dataclass(frozen=True, slots=True)
class Tls:
    """What the doors need to speak TLS."""

    context: ssl.SSLContext
    ca_file: Path | None = None  # what clients are to trust; None if the certificate is the user's


def own_certificate(files: CertificateFiles) -> Tls:
    """TLS with the user's certificate and key."""
    certificate, key = files
    context = server_context()
    try:
        # An encrypted key would make OpenSSL ask on the terminal; an empty password is refused.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except OSError as wrong:  # an SSLError is one
        raise OptionError(
            f"the certificate {certificate} with key {key} cannot be used: {why(wrong)}"
        ) from None
    return Tls(context)


def development_certificate(host: str, directory: Path) -> Tls:
    """TLS with a certificate made here and now, under the authority kept in a directory."""
    try:
        from pumphouse.hub.listeners import certificates
    except ImportError:
        raise OptionError(
            "a development certificate needs the package cryptography: "
            "pip install 'pumphouse[tls]', or give your own certificate=(cert, key)"
        ) from None
    now = SystemClock().now()  # clients judge certificates by real time
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = certificates.ensure_authority(directory, now)
    except OSError as failed:
        raise OptionError(
            f"the certificate authority in {directory} cannot be used: {failed.strerror}"
        ) from None
    server = certificates.make_server(authority, names_of(host), now)
    context = server_context()
    load(context, server.certificate_pem + server.key_pem)
    return Tls(context, directory / certificates.CA_FILE)


def names_of(host: str) -> Iterable[str]:
    """By which names and addresses a client may reach a hub that listens on `host`."""
    own = socket.gethostname() if host in EVERYWHERE else host
    return dict.fromkeys([*LOCAL_NAMES, own])


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load(context: ssl.SSLContext, pem: bytes) -> None:
    """Give a context its certificate and key; it takes them from a file only, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pumphouse-") as directory:
        path = Path(directory) / "server.pem"
        path.write_bytes(pem)
        context.load_cert_chain(path)


def why(wrong: OSError) -> str:
    return wrong.strerror or str(wrong)
