"""Hub variants: the transport of the clients, and whether the hub is durable.

    plain       AMQP
    tls         AMQP over TLS
    websocket   AMQP over WebSocket, without TLS
    wss         AMQP over WebSocket with TLS: on request, and for the JavaScript client
    durable     AMQP with events on disk; the hub is killed and restarted between sends

Every test of the Python client runs on each variant that `--variants` lists. The connection strings
of a hub made by `variant.hub(...)` lead to the port of that variant.

With `durable` the hub restarts after the first, second, fourth, eighth ... send of a test, on the
same port, without closing connections, and with only what is on disk. `WITHOUT_RESTARTS` lists the
tests that run on disk but without restarts, and why.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from azure.eventhub import TransportType

from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from tests.conformance.entity import eventually

PLAIN, TLS, WEBSOCKET, WSS, DURABLE = VARIANTS = ("plain", "tls", "websocket", "wss", "durable")
SECURE = (TLS, WSS)

# The key is the name of a test or of a module.
WITHOUT_RESTARTS: Mapping[str, str] = dict(
    test_epochs="epochs are not stored: a restart would forget them",
    test_reconnect="these tests drop connections and stop the hub themselves",
    **dict.fromkeys(
        (
            "test_refusals",
            "test_an_error_reaches_the_callback",
            "test_an_invalid_position_is_refused",
            "test_the_sdk_cannot_read_the_decimals_it_writes",
            "test_a_reader_gets_the_reason_when_its_token_expires",
        ),
        "a client that survives restarts retries and does not report the expected error",
    ),
    **dict.fromkeys(
        (
            "test_a_missing_hub",
            "test_a_missing_partition",
            "test_a_signature_expired_by_the_clock_of_the_hub",
            "test_the_sdk_cannot_encode_a_large_int",
        ),
        "nothing is sent, and a client that survives restarts would be refused twenty times",
    ),
    test_readers_of_one_group_get_everything_each=(
        "'@latest' is the end at the time of attaching, and a client attaches again after a restart"
    ),
)

# The SDK leaves what belongs to a broken connection to the garbage collector.
UNCLOSED = "ignore::pytest.PytestUnraisableExceptionWarning"
# Warnings of Python about the SDK on each variant.
IGNORED_WARNINGS: Mapping[str, list[str]] = {
    PLAIN: [],
    TLS: [],
    # It uses a deprecated argument of aiohttp and does not close its sessions.
    WEBSOCKET: ["ignore:ssl=None is deprecated:DeprecationWarning", UNCLOSED],
    WSS: [UNCLOSED],
    DURABLE: [UNCLOSED],
}
# With these a client survives restarts and retries soon. The asyncio reader counts its attempts
# over its whole life, so it needs many.
RETRIES_OVER_RESTARTS: dict[str, Any] = {
    "retry_mode": "fixed",
    "retry_backoff_factor": 0.1,
    "retry_total": 20,
}
READER_RETRIES: dict[str, Any] = {**RETRIES_OVER_RESTARTS, "retry_total": 1000}
OVER_WEBSOCKET: dict[str, Any] = {"transport_type": TransportType.AmqpOverWebsocket}
# The blocking client uses one time-out for reading and for handshakes. Its default of 1 s is too
# short for a handshake on a busy machine; a longer one only delays the end of a reader.
SOCKET_S = {WEBSOCKET: 3.0, WSS: 3.0}
# Ports from here on are ephemeral: another connection may take one while the hub is down.
EPHEMERAL_PORT = 32768


class HubVariant:
    """One hub variant. `folder` holds its data directories and its TLS authority."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.restarting = name == DURABLE
        self.hubs: dict[str, HubUnderTest] = {}  # running hubs by address
        self.hub_count = 0

    @property
    def ca_file(self) -> Path:
        """The certificate that clients trust: all hubs of this variant share one authority."""
        return self.folder / "tls" / "ca.pem"

    @property
    def is_durable(self) -> bool:
        return self.name == DURABLE

    def hub(
        self,
        hubs: Mapping[str, int] | None = None,
        port: int = 0,
        steady: bool = False,
        **more: Any,
    ) -> HubUnderTest:
        """A hub of this variant, on a free port or on the given one.

        A steady hub is shared by several tests and does not restart.
        """
        self.hub_count += 1
        settings: dict[str, dict[str, Any]] = {
            PLAIN: {"port": port},
            TLS: {"tls_port": port, "tls_dir": self.ca_file.parent},
            WEBSOCKET: {"ws_port": port},
            WSS: {"ws_port": port, "tls_port": 0, "tls_dir": self.ca_file.parent},
            DURABLE: {"port": port or free_port(), "data": self.folder / str(self.hub_count)},
        }
        hub = HubUnderTest(self, hubs, **settings[self.name], **more)
        hub.steady = steady
        return hub

    @contextmanager
    def without_restarts(self) -> Iterator[None]:
        """Suppress restarts inside the block."""
        before, self.restarting = self.restarting, False
        try:
            yield
        finally:
            self.restarting = before

    def port(self, hub: HubUnderTest) -> int | None:
        return hub.tls_port if self.name == TLS else hub.ws_port

    @property
    def defaults(self) -> dict[str, Any]:
        """Client options that a test may override."""
        return {"socket_timeout": SOCKET_S[self.name]} if self.name in SOCKET_S else {}

    def options(self, address: str, reading: bool = False) -> dict[str, Any]:
        """Client options that select this variant, besides the connection string."""
        endpoint = {"custom_endpoint_address": f"sb://{address}"}
        trusted_authority = {"connection_verify": str(self.ca_file)}
        options_by_variant: dict[str, dict[str, Any]] = {
            TLS: {"transport_type": TransportType.Amqp, **endpoint, **trusted_authority},
            WEBSOCKET: {**OVER_WEBSOCKET, **endpoint},
            WSS: {**OVER_WEBSOCKET, **endpoint, **trusted_authority},
        }
        if self.restarts(address) is not None:
            return READER_RETRIES if reading else RETRIES_OVER_RESTARTS
        return options_by_variant.get(self.name, {})

    def credential_options(self, address: str, reading: bool = False) -> dict[str, Any]:
        """Client options for a client without a connection string."""
        # `use_tls` is undocumented; the SDK sets it for connection strings of the emulator.
        return self.options(address, reading) | ({} if self.name in SECURE else {"use_tls": False})

    async def send(self, address: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send; the hub may restart afterwards."""
        restarts = self.restarts(address)
        return await (send() if restarts is None else restarts.send_counted(send))

    def restarts(self, address: str) -> Restarts | None:
        """The restarts of the hub at an address, or None if it does not restart now."""
        hub = self.hubs.get(address)
        return hub.restarts if hub is not None and self.restarting and not hub.steady else None


class HubUnderTest(EmbeddedHub):
    """A hub of one variant that can restart on the same files."""

    def __init__(self, variant: HubVariant, hubs: Mapping[str, int] | None, **options: Any) -> None:
        self.variant = variant
        self.arguments = {"hubs": hubs, **options}
        self.restarts = Restarts(self)
        self.steady = False
        super().__init__(hubs, **options)

    def __enter__(self) -> Self:
        super().__enter__()
        self.variant.hubs[self.authority] = self
        return self

    def __exit__(self, *exc: object) -> None:
        self.variant.hubs.pop(self.authority, None)
        super().__exit__(*exc)

    @property
    def port(self) -> int:
        """The port of the variant, so that connection strings contain it."""
        return self.variant.port(self) or super().port

    def connection_string(
        self, hub: str | None = None, rule: str = ROOT_RULE, *, tls: bool = False
    ) -> str:
        return super().connection_string(hub, rule, tls=tls or self.variant.name in SECURE)

    def require_tls_port(self) -> int:
        return self.port

    def restart(self) -> None:
        """Drop all connections, stop, and start again from the data directory."""
        self.drop_connections()
        self.__exit__()
        EmbeddedHub.__init__(self, **self.arguments)
        self.__enter__()

    def readers(self) -> Counter[tuple[str, str, str]]:
        """The number of readers by hub, partition and group."""
        return self._call(
            lambda: Counter(
                {
                    (hub.name, partition.id, group): len(links)
                    for hub in self.namespace.hubs
                    for partition in hub.partitions
                    for group, links in partition.readers.items()
                }
            )
        )


class Restarts:
    """Restarts a hub after its first, second, fourth, eighth ... send, while no send is in flight.

    The SDK re-sends when the outcome of a send is lost. That would add duplicates to tests that
    count events, so a restart waits for the sends in flight.
    """

    def __init__(self, hub: HubUnderTest) -> None:
        self.hub = hub
        self.sends = 0
        self.count = 0
        self.is_due = False
        self.in_flight = 0
        self.open = asyncio.Event()
        self.open.set()

    def reset_count(self) -> None:
        """Start counting again, for the next test."""
        self.sends = 0

    async def send_counted(self, send: Callable[[], Awaitable[Any]]) -> Any:
        await self.open.wait()
        self.in_flight += 1
        try:
            result = await send()
        finally:
            self.in_flight -= 1
        self.sends += 1
        self.is_due |= self.sends & (self.sends - 1) == 0
        if self.is_due and not self.in_flight:
            await self.restart()
        return result

    async def restart(self) -> None:
        self.is_due = False
        self.open.clear()
        try:
            before = self.hub.readers()
            await asyncio.to_thread(self.hub.restart)
            self.count += 1
            # The test continues when all earlier readers are attached again.
            await eventually(
                lambda: self.hub.readers() >= before,
                lambda: f"readers to attach again: {before}, attached: {self.hub.readers()}",
            )
        finally:
            self.open.set()


def address_of(connection: str) -> str:
    """Host and port in a connection string."""
    match = re.search(r"Endpoint=sb://([^;/]+)", connection)
    assert match is not None, connection
    return match[1]


def free_port() -> int:
    """A free port below the ephemeral ones, so that no outgoing connection takes it."""
    while True:
        port = random.randrange(EPHEMERAL_PORT // 2, EPHEMERAL_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
