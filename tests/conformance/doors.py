"""By which door the official client comes in, and whether the hub keeps what it was sent.

    plain       AMQP
    tls         AMQP over TLS
    websocket   AMQP over WebSocket, without TLS
    wss         the same with TLS: only if asked for, but the JavaScript client speaks no other
    durable     AMQP, and events on disk: the hub dies and is started anew between sends

Every test of the Python client runs with each of them (`--doors` chooses). A hub that a test makes
with `door.hub(...)` has connection strings that lead to that door.

With `durable` the hub is started anew after the first send of a test, and after its second, fourth,
eighth ... : without a word to its clients, on the same port, with nothing but what is on disk.
`UNDISTURBED` names the tests to which that cannot happen, and says why. They run on disk as well.
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

PLAIN, TLS, WEBSOCKET, WSS, DURABLE = DOORS = ("plain", "tls", "websocket", "wss", "durable")
SECURE = (TLS, WSS)

# By the name of a test, or of a whole module.
UNDISTURBED: Mapping[str, str] = dict(
    test_epochs="nothing is remembered of a reader that has gone: a restart would forget epochs",
    test_reconnect="it breaks connections and stops the hub itself, when and how it wants to",
    **dict.fromkeys(
        (
            "test_refusals",
            "test_an_error_is_told",
            "test_positions_that_are_refused",
            "test_the_sdk_cannot_read_the_decimals_it_writes",
            "test_what_a_reader_is_told_when_its_token_runs_out",
        ),
        "a client that outlives restarts tries again, and would not tell what the test waits for",
    ),
    **dict.fromkeys(
        (
            "test_a_hub_that_is_not_there",
            "test_a_partition_that_is_not_there",
            "test_a_signature_that_has_run_out_by_the_clock_of_the_hub",
            "test_the_sdk_has_no_word_for_a_large_int",
        ),
        "nothing is sent, and a client that outlives restarts would be refused twenty times",
    ),
    test_readers_of_one_group_get_everything_each=(
        "'@latest' is the end at the time of attaching, and after a restart a client attaches anew"
    ),
)

# The SDK leaves what belongs to a broken connection to the garbage collector.
FORGOTTEN = "ignore::pytest.PytestUnraisableExceptionWarning"
# What the SDK does behind a door that Python warns of, and that is no fault of ours.
FORGIVEN: Mapping[str, list[str]] = {
    PLAIN: [],
    TLS: [],
    # It tells aiohttp "no TLS" in a way that aiohttp no longer likes, and forgets its sessions.
    WEBSOCKET: ["ignore:ssl=None is deprecated:DeprecationWarning", FORGOTTEN],
    WSS: [FORGOTTEN],
    DURABLE: [FORGOTTEN],
}
# So that a client outlives restarts, and looks again soon. The asyncio reader counts its attempts
# for as long as it lives, whatever it has read meanwhile.
PATIENCE: dict[str, Any] = {"retry_mode": "fixed", "retry_backoff_factor": 0.1, "retry_total": 20}
PATIENCE_OF_A_READER: dict[str, Any] = {**PATIENCE, "retry_total": 1000}
OVER_WEBSOCKET: dict[str, Any] = {"transport_type": TransportType.AmqpOverWebsocket}
# How long the blocking client waits for a quiet socket before it looks at anything else, and how
# long a handshake may take: a second unless told, slow for the one and short for the other.
SOCKET_S = {WEBSOCKET: 0.5, WSS: 3.0}
# Not from here on: a connection of somebody's own may take such a port while the hub is down.
EPHEMERAL_PORT = 32768


class Door:
    """One way in. `folder` is for what is kept on disk: events, and an authority for TLS."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.restarting = name == DURABLE
        self.hubs: dict[str, JudgedHub] = {}  # those that run, by their address
        self.made = 0

    @property
    def ca_file(self) -> Path:
        """What clients are to trust: all hubs behind this door have one authority."""
        return self.folder / "tls" / "ca.pem"

    @property
    def keeps(self) -> bool:
        return self.name == DURABLE

    def hub(
        self,
        hubs: Mapping[str, int] | None = None,
        port: int = 0,
        steady: bool = False,
        **more: Any,
    ) -> JudgedHub:
        """A hub with this door, on a port of its own or on this one.

        One that is steady, because several judges share it, is not started anew.
        """
        self.made += 1
        settings: dict[str, dict[str, Any]] = {
            PLAIN: {"port": port},
            TLS: {"tls_port": port, "tls_dir": self.ca_file.parent},
            WEBSOCKET: {"ws_port": port},
            WSS: {"ws_port": port, "tls_port": 0, "tls_dir": self.ca_file.parent},
            DURABLE: {"port": port or free_port(), "data": self.folder / str(self.made)},
        }
        made = JudgedHub(self, hubs, **settings[self.name], **more)
        made.steady = steady
        return made

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """No restarts for a while."""
        before, self.restarting = self.restarting, False
        try:
            yield
        finally:
            self.restarting = before

    def port(self, hub: JudgedHub) -> int | None:
        return hub.tls_port if self.name == TLS else hub.ws_port

    @property
    def defaults(self) -> dict[str, Any]:
        """What a client is told unless the test has told it something else."""
        return {"socket_timeout": SOCKET_S[self.name]} if self.name in SOCKET_S else {}

    def options(self, address: str, reading: bool = False) -> dict[str, Any]:
        """What a client is told so that it comes in here; the rest is in the connection string."""
        elsewhere = {"custom_endpoint_address": f"sb://{address}"}
        trusting = {"connection_verify": str(self.ca_file)}
        ways: dict[str, dict[str, Any]] = {
            TLS: {"transport_type": TransportType.Amqp, **elsewhere, **trusting},
            WEBSOCKET: {**OVER_WEBSOCKET, **elsewhere},
            WSS: {**OVER_WEBSOCKET, **elsewhere, **trusting},
        }
        if self.restarts(address) is not None:
            return PATIENCE_OF_A_READER if reading else PATIENCE
        return ways.get(self.name, {})

    def credential_options(self, address: str, reading: bool = False) -> dict[str, Any]:
        """The same for a client that is made without a connection string."""
        # Plain TCP is an option that the SDK does not document: its emulator's strings set it.
        return self.options(address, reading) | ({} if self.name in SECURE else {"use_tls": False})

    async def send(self, address: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send something; afterwards the hub may be another one."""
        restarts = self.restarts(address)
        return await (send() if restarts is None else restarts.around(send))

    def restarts(self, address: str) -> Restarts | None:
        """Those of the hub at an address, if it is to have any now."""
        hub = self.hubs.get(address)
        return hub.restarts if hub is not None and self.restarting and not hub.steady else None


class JudgedHub(EmbeddedHub):
    """A hub behind a door, which can be replaced by another one that has its files."""

    def __init__(self, door: Door, hubs: Mapping[str, int] | None, **options: Any) -> None:
        self.door = door
        self.given = {"hubs": hubs, **options}
        self.restarts = Restarts(self)
        self.steady = False
        super().__init__(hubs, **options)

    def __enter__(self) -> Self:
        super().__enter__()
        self.door.hubs[self.authority] = self
        return self

    def __exit__(self, *exc: object) -> None:
        self.door.hubs.pop(self.authority, None)
        super().__exit__(*exc)

    @property
    def port(self) -> int:
        """That of the door, so that all that is made of it leads there."""
        return self.door.port(self) or super().port

    def connection_string(
        self, hub: str | None = None, rule: str = ROOT_RULE, *, tls: bool = False
    ) -> str:
        return super().connection_string(hub, rule, tls=tls or self.door.name in SECURE)

    def need_tls_port(self) -> int:
        return self.port

    def restart(self) -> None:
        """Go without a word, come back with what is on disk."""
        self.drop_connections()
        self.__exit__()
        EmbeddedHub.__init__(self, **self.given)
        self.__enter__()

    def readers(self) -> Counter[tuple[str, str, str]]:
        """How many readers each partition has, by hub, partition and group."""
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
    """Starts a hub anew after its first, second, fourth, eighth ... send, when none is under way.

    A send whose answer is lost is made twice by the SDK, as it should; the tests that count
    events are about something else.
    """

    def __init__(self, hub: JudgedHub) -> None:
        self.hub = hub
        self.sends = 0
        self.count = 0
        self.due = False
        self.under_way = 0
        self.open = asyncio.Event()
        self.open.set()

    def forget(self) -> None:
        """A test begins: its first send will be the first."""
        self.sends = 0

    async def around(self, send: Callable[[], Awaitable[Any]]) -> Any:
        await self.open.wait()
        self.under_way += 1
        try:
            answer = await send()
        finally:
            self.under_way -= 1
        self.sends += 1
        self.due |= self.sends & (self.sends - 1) == 0
        if self.due and not self.under_way:
            await self.restart()
        return answer

    async def restart(self) -> None:
        self.due = False
        self.open.clear()
        try:
            before = self.hub.readers()
            await asyncio.to_thread(self.hub.restart)
            self.count += 1
            # Who was reading is to read again before the test goes on.
            await eventually(
                lambda: self.hub.readers() >= before,
                lambda: f"readers to come back: {before}, there are {self.hub.readers()}",
            )
        finally:
            self.open.set()


def address_of(connection: str) -> str:
    """Host and port in a connection string."""
    found = re.search(r"Endpoint=sb://([^;/]+)", connection)
    assert found is not None, connection
    return found[1]


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection is given by accident."""
    while True:
        port = random.randrange(EPHEMERAL_PORT // 2, EPHEMERAL_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
