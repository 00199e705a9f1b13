"""AMQP over TLS: the official clients, the certificate and the listener."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.eventhub.exceptions import EventHubError

from pumphouse.clock import SystemClock
from pumphouse.errors import DataDirectoryError, OptionError, PortTaken
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.listeners import certificates, listeners, tls
from pumphouse.hub.listeners.tls import LOCAL_NAMES, server_names
from tests.hub.listeners.official_clients import (
    javascript_round_trip,
    over_tls,
    read,
    round_trip,
    send,
)

NOW = 1_800_000_000.0
DAY_S = 24 * 3600.0


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 1}, tls_port=0) as hub:
        yield hub


async def handshake(
    hub: EmbeddedHub, trust: Path | None, name: str = "localhost"
) -> dict[str, object]:
    """Connect to the TLS port with a trusted authority and a host name; returns the certificate."""
    context = ssl.create_default_context(cafile=trust)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", hub.tls_port, ssl=context, server_hostname=name
    )
    writer.write(b"AMQP\x03\x01\x00\x00")
    assert await reader.readexactly(8) == b"AMQP\x03\x01\x00\x00"
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return dict(certificate)


# -- the official client --------------------------------------------------------------------------


async def test_the_official_client_sends_and_receives(hub: EmbeddedHub) -> None:
    """Both SDKs run at the same time, because they mostly wait."""

    async def check(sdk_name: str) -> None:
        hub.create_hub(sdk_name, 1)
        connection = hub.connection_string(sdk_name, tls=True)
        assert "UseDevelopmentEmulator" not in connection
        content = [b"hello", b"x" * 900_000, b"bye"]
        assert await round_trip(sdk_name, connection, content, over_tls(hub)) == content, sdk_name

    async with asyncio.TaskGroup() as checks:
        for sdk_name in ("sync", "aio"):
            checks.create_task(check(sdk_name))


async def test_the_official_javascript_client_sends_and_receives(hub: EmbeddedHub) -> None:
    assert hub.ca_file is not None
    connection = hub.connection_string("eh", tls=True).replace("127.0.0.1", "localhost")
    assert await javascript_round_trip(connection, hub.ca_file) == "hello"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_clients_may_use_every_local_name(host: str, hub: EmbeddedHub) -> None:
    await send("aio", hub.connection_string("eh", tls=True), [b"hello"], over_tls(hub, host))


async def test_an_event_sent_over_tls_is_read_without_tls(hub: EmbeddedHub) -> None:
    await send("aio", hub.connection_string("eh", tls=True), [b"hello"], over_tls(hub))
    assert await read("aio", hub.connection_string("eh"), 1, {}) == [b"hello"]


@pytest.mark.parametrize("sdk_name", ["sync", "aio"])
async def test_a_client_without_the_authority_refuses_the_certificate(
    sdk_name: str, hub: EmbeddedHub
) -> None:
    options = over_tls(hub)
    del options["connection_verify"]
    with pytest.raises(EventHubError, match="certificate verify failed"):
        await send(sdk_name, hub.connection_string("eh", tls=True), [b"hello"], options)


# -- the certificate ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOCAL_NAMES)
async def test_the_certificate_is_valid_for_local_names(name: str, hub: EmbeddedHub) -> None:
    await handshake(hub, hub.ca_file, name)


async def test_the_certificate_is_not_valid_for_other_names(hub: EmbeddedHub) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"example\.com"):
        await handshake(hub, hub.ca_file, "example.com")


def test_the_certificate_covers_the_listening_host() -> None:
    assert list(server_names("hub.test")) == [*LOCAL_NAMES, "hub.test"]
    assert list(server_names("127.0.0.1")) == [*LOCAL_NAMES]
    assert list(server_names("0.0.0.0")) == [*LOCAL_NAMES, socket.gethostname()]


async def test_the_certificate_passes_strict_verification(hub: EmbeddedHub) -> None:
    context = ssl.create_default_context(cafile=hub.ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    _, writer = await asyncio.open_connection("127.0.0.1", hub.tls_port, ssl=context)
    writer.close()
    await writer.wait_closed()


async def test_the_authority_is_stored_and_the_certificate_is_not(tmp_path: Path) -> None:
    serials, authorities = set(), set()
    for _ in range(2):
        async with EmbeddedHub(tls_port=0, tls_dir=tmp_path) as hub:
            assert hub.ca_file == tmp_path / "ca.pem"
            authorities.add(hub.ca_file.read_bytes())
            serials.add((await handshake(hub, hub.ca_file))["serialNumber"])
    assert len(authorities) == 1
    assert len(serials) == 2
    assert sorted(os.listdir(tmp_path)) == ["ca-key.pem", "ca.pem"]


async def test_the_key_of_the_authority_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with EmbeddedHub(tls_port=0, tls_dir=tmp_path / "new"):
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new" / "ca-key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


async def test_a_key_that_others_can_read_is_made_private_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedHub(tls_port=0, tls_dir=tmp_path):
        pass
    (tmp_path / "ca-key.pem").chmod(0o640)
    async with EmbeddedHub(tls_port=0, tls_dir=tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / "ca-key.pem").stat().st_mode) == 0o600
    assert "key_file_exposed" in caplog.text


def test_the_temporary_file_of_the_server_key_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    class Context:
        def load_cert_chain(self, path: Path) -> None:
            modes.append(stat.S_IMODE(path.stat().st_mode))

    umask = os.umask(0)
    try:
        tls.load(Context(), b"certificate and key")  # type: ignore[arg-type]
    finally:
        os.umask(umask)
    assert modes == [0o600]


async def test_the_authority_is_stored_in_the_data_directory(tmp_path: Path) -> None:
    async with EmbeddedHub({"eh": 1}, tls_port=0, data=tmp_path / "data") as hub:
        assert hub.ca_file == tmp_path / "data" / "tls" / "ca.pem"
        await handshake(hub, hub.ca_file)
    async with EmbeddedHub({"eh": 1}, data=tmp_path / "data") as hub:
        assert hub.ca_file is None


async def test_a_temporary_authority_is_removed_at_the_stop() -> None:
    async with EmbeddedHub(tls_port=0) as hub:
        assert hub.ca_file is not None
        assert hub.ca_file.exists()
        directory = hub.ca_file.parent
    assert not directory.exists()


def test_an_authority_that_expires_soon_is_replaced(tmp_path: Path) -> None:
    first = certificates.ensure_authority(tmp_path, NOW)
    later = certificates.ensure_authority(tmp_path, NOW + (3650 - 40) * DAY_S)
    assert later.certificate == first.certificate
    last = certificates.ensure_authority(tmp_path, NOW + (3650 - 20) * DAY_S)
    assert last.certificate != first.certificate
    assert (tmp_path / "ca.pem").read_bytes() == last.certificate_pem


def test_of_two_authorities_made_at_once_the_first_is_used(tmp_path: Path) -> None:
    ours, theirs = certificates.make_authority(NOW), certificates.make_authority(NOW)
    certificates.write_if_absent(tmp_path / "ca-key.pem", theirs)
    certificates.write_if_absent(tmp_path / "ca-key.pem", ours)
    stored = certificates.load_authority(tmp_path / "ca-key.pem")
    assert stored is not None
    assert stored.certificate == theirs.certificate
    assert [path.name for path in tmp_path.iterdir()] == ["ca-key.pem"]


def test_a_damaged_authority_is_reported_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "ca-key.pem").write_text("not a certificate")
    with pytest.raises(DataDirectoryError, match="delete it to get a new one"):
        certificates.ensure_authority(tmp_path, NOW)


# -- your own certificate -------------------------------------------------------------------------


async def test_the_users_certificate_is_used(tmp_path: Path) -> None:
    now = SystemClock().now()
    authority = certificates.make_authority(now)
    server = certificates.make_server_certificate(authority, ["localhost"], now)
    for name, content in (
        ("trust.pem", authority.certificate_pem),
        ("cert.pem", server.certificate_pem),
        ("key.pem", server.key_pem),
    ):
        (tmp_path / name).write_bytes(content)
    files = (tmp_path / "cert.pem", str(tmp_path / "key.pem"))
    async with EmbeddedHub(tls_port=0, certificate=files) as hub:
        assert hub.ca_file is None
        await handshake(hub, tmp_path / "trust.pem")


async def test_an_unusable_certificate_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate")
    for name in ("cert.pem", "missing.pem"):
        files = (tmp_path / name, tmp_path / name)
        hub = EmbeddedHub(tls_port=0, certificate=files)
        with pytest.raises(OptionError, match=f"cannot use the certificate .*{name} with key .*: "):
            await hub.start()


async def test_without_cryptography_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pumphouse.hub.listeners.certificates", None)
    monkeypatch.delattr("pumphouse.hub.listeners.certificates")
    with pytest.raises(OptionError, match=r"pip install 'pumphouse\[tls\]'"):
        await EmbeddedHub(tls_port=0).start()


# -- the port -------------------------------------------------------------------------------------


async def test_a_hub_without_tls_has_no_tls_connection_string() -> None:
    async with EmbeddedHub({"eh": 1}) as hub:
        assert (hub.tls_port, hub.ws_port, hub.http_port, hub.ca_file) == (None,) * 4
        with pytest.raises(OptionError, match="the hub has no TLS port; start it with tls_port"):
            hub.connection_string("eh", tls=True)


async def test_if_one_listener_cannot_start_none_does(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        hub = EmbeddedHub({"eh": 1}, port=other, tls_port=port, data=tmp_path)
        with pytest.raises(PortTaken, match=f"cannot listen on 127.0.0.1:{port}: address in use"):
            await hub.start()
    # The port and the data directory are free again.
    async with EmbeddedHub({"eh": 1}, port=other, tls_port=0, data=tmp_path):
        pass


async def test_a_silent_client_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_S", 0.05)
    async with EmbeddedHub(tls_port=0) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.tls_port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_client_without_tls_is_refused(hub: EmbeddedHub) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.tls_port)
    writer.write(b"AMQP\x03\x01\x00\x00")
    async with asyncio.timeout(10):
        assert b"AMQP" not in await reader.read()
    writer.close()
    await writer.wait_closed()
    await handshake(hub, hub.ca_file)


async def test_a_stopping_hub_closes_tls_connections(hub: EmbeddedHub) -> None:
    context = ssl.create_default_context(cafile=hub.ca_file)
    reader, writer = await asyncio.open_connection("localhost", hub.tls_port, ssl=context)
    writer.write(b"AMQP\x03\x01\x00\x00")
    await reader.readexactly(8)
    async with asyncio.timeout(10):
        await hub.stop()
        await reader.read()
    writer.close()
    await writer.wait_closed()
