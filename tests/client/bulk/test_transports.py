"""Ranges over every transport, with every kind of credential; and failures to connect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pumphouse.amqp.messages import Message, encode_message
from pumphouse.client.bulk.client import BulkClient, RangeOptions, read_range
from pumphouse.client.bulk.streams import open_stream
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.routes import Route
from pumphouse.client.sas import sign
from pumphouse.errors import AuthError, ConnectionFailed, HubUntrusted, OptionError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.token_issuer import TokenIssuer
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.hub_entity import (
    NO_RETRIES,
    WAIT_S,
    Entity,
    client_arguments,
    filled_entity,
    numbered_messages,
    rows,
    sequences,
)
from tests.client.native.transports import TRANSPORTS

ISSUER = TokenIssuer(b"a secret of the tests")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedHub]:
    with EmbeddedHub(tls_port=0, ws_port=0, issuer=ISSUER) as hub:
        yield hub


# --- Transports ----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_range_is_read(server: EmbeddedHub, transport: str) -> None:
    arguments = client_arguments(transport, server, filled_entity(server).name)
    batches = read_range(first=17, last=300, partition="0", **arguments)
    assert sequences(batches) == list(range(17, 300))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_and_large_events_are_read(eh: Entity, server: EmbeddedHub, transport: str) -> None:
    bodies = [bytes([n % 256]) * size for n, size in enumerate([10, 900_000, 0, 70_000, 300] * 4)]
    eh.put([encode_message(Message(data=(body,))) for body in bodies])
    eh.put(numbered_messages(range(5_000), 100))
    with BulkClient(**client_arguments(transport, server, eh.name)) as client:
        for rows_max in (8192, 7):
            options = RangeOptions(batch_rows=rows_max)
            received = rows(client.read_range("0", 0, len(bodies) + 50, options))
            assert [row["body"] for row in received][: len(bodies)] == bodies
        last = client.partition_properties("0").last_sequence + 1
        assert sequences(client.read_range("0", 0, last)) == list(range(last))
        assert client.properties().partitions == ("0", "1")


@pytest.mark.parametrize("transport", ["tls", "wss"])
def test_an_untrusted_certificate_is_refused(server: EmbeddedHub, transport: str) -> None:
    arguments = client_arguments(transport, server, filled_entity(server).name) | {"ca_file": None}
    with pytest.raises(HubUntrusted, match=r"certificate that is not trusted.*set ca_file"):
        list(read_range(first=0, last=1, partition="0", **arguments))


def test_a_ca_file_without_a_certificate_is_refused(server: EmbeddedHub, tmp_path: Path) -> None:
    arguments = client_arguments("tls", server, filled_entity(server).name)
    for file in (tmp_path / "none.pem", Path(__file__)):
        with pytest.raises(OptionError, match=r"cannot use ca_file"):
            list(read_range(first=0, last=1, partition="0", **(arguments | {"ca_file": file})))


def test_a_port_without_tls_is_reported(server: EmbeddedHub) -> None:
    arguments = client_arguments("tls", server, filled_entity(server).name) | {
        "endpoint": f"127.0.0.1:{server.port}"
    }
    with pytest.raises((HubUntrusted, ConnectionFailed)):
        list(read_range(first=0, last=1, partition="0", **arguments))


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("127.0.0.1:{port}", "at /.servicebus/websocket failed:"),
        ("127.0.0.1:{ws_port}/elsewhere", "failed: server rejected .* HTTP 404"),
    ],
)
def test_a_port_without_websocket_is_reported(server: EmbeddedHub, endpoint: str, why: str) -> None:
    leads = endpoint.format(port=server.port, ws_port=server.ws_port)
    arguments = client_arguments("ws", server, filled_entity(server).name) | {"endpoint": leads}
    with pytest.raises(ConnectionFailed, match=why):
        list(read_range(first=0, last=1, partition="0", **arguments))


def test_an_invalid_transport_is_refused(server: EmbeddedHub) -> None:
    with pytest.raises(OptionError, match="transport must be one of tcp, websocket"):
        read_range(filled_entity(server).connection, "0", 0, 1, transport="pigeon")


# --- Credentials ---------------------------------------------------------------------------------


@dataclass
class Identity:
    """A credential like those of azure-identity."""

    claims: tuple[Claim, ...] = (Claim.LISTEN,)
    asked: int = 0

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://eventhubs.azure.net/.default",)
        self.asked += 1
        minted = ISSUER.mint(self.claims, now=time.time())
        return AccessToken(minted, int(time.time()) + 3600)


class Async(Identity):
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:  # type: ignore[override]
        return super().get_token(*scopes)


class Broken(Identity):
    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise RuntimeError("no identity on this machine\nat all")


def signature(server: EmbeddedHub, hub: str, lasts_s: int = 100) -> str:
    given = parse_connection_string(server.connection_string(hub))
    resource = given.resource(hub)
    return sign(resource, given.key_name, given.key, int(time.time()) + lasts_s)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_identity_credential_is_accepted(server: EmbeddedHub, transport: str) -> None:
    eh, identity = filled_entity(server), Identity()
    arguments = client_arguments(transport, server, eh.name) | {"credential": identity}
    with BulkClient(**arguments) as client:
        for _ in range(3):
            assert sequences(client.read_range("0", 0, 10)) == list(range(10))
    assert identity.asked == 1


def test_a_host_with_an_identity_is_enough(server: EmbeddedHub) -> None:
    batches = read_range(
        f"127.0.0.1:{server.tls_port}",
        "0",
        0,
        10,
        hub=filled_entity(server).name,
        credential=Identity(),
        ca_file=server.ca_file,
    )
    assert sequences(batches) == list(range(10))


def test_signatures_and_keys_are_accepted(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    made = signature(server, eh.name)
    given = parse_connection_string(eh.connection)
    for credential in (
        made,
        AzureSasCredential(made),
        AzureNamedKeyCredential(given.key_name, given.key),
    ):
        batches = read_range(eh.connection, "0", 0, 10, credential=credential)
        assert sequences(batches) == list(range(10))


def test_a_credential_for_asyncio_is_refused(server: EmbeddedHub) -> None:
    with pytest.raises(OptionError, match=r"Async is a credential for asyncio.*azure.identity,"):
        read_range(filled_entity(server).connection, "0", 0, 1, credential=Async())


@pytest.mark.parametrize(
    ("credential", "why"),
    [
        (Broken(), "cannot get the token of Broken: no identity on this machine$"),
        (Identity((Claim.SEND,)), "Listen"),
        ("SharedAccessSignature sr=a&sig=b&se=9999999999&skn=c", "not accept the SharedAccessSig"),
    ],
)
def test_a_refused_credential_is_reported(server: EmbeddedHub, credential: Any, why: str) -> None:
    with pytest.raises(AuthError, match=why):
        list(
            read_range(
                filled_entity(server).connection, "0", 0, 1, credential=credential, retry=NO_RETRIES
            )
        )


async def test_a_range_can_be_read_inside_an_event_loop(server: EmbeddedHub) -> None:
    """It blocks the loop, but works."""
    batches = read_range(filled_entity(server).connection, "0", 0, 10, credential=Identity())
    assert sequences(batches) == list(range(10))


# --- WebSocket streams ---------------------------------------------------------------------------


class Talker:
    """A WebSocket server that sends frames of many sizes."""

    def __init__(self, sent_bytes: bytes, chance: Random, subprotocol: str = "amqp") -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.route = Route("127.0.0.1", self.listening.getsockname()[1], "here", websocket=True)
        self.sent_bytes = sent_bytes
        self.chance = chance
        self.protocol = ServerProtocol(subprotocols=[Subprotocol(subprotocol)])
        self.heard = bytearray()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        talking, _ = self.listening.accept()
        # The peer closes without waiting for our response.
        with talking, self.listening, suppress(ConnectionError):
            while data := talking.recv(1 << 16):
                self.protocol.receive_data(data)
                for event in self.protocol.events_received():
                    if isinstance(event, Request):
                        self.protocol.send_response(self.protocol.accept(event))
                        self.talk()
                    elif isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                        self.heard += event.data
                for piece in self.protocol.data_to_send():
                    talking.sendall(piece)

    def talk(self) -> None:
        """Send whole messages, fragmented messages, and pings between them."""
        at = 0
        while self.protocol.state is OPEN and at < len(self.sent_bytes):
            sizes = [self.chance.choice([0, 1, 125, 126, 5000, 70_000]) for _ in range(3)]
            for number, size in enumerate(sizes):
                piece, at = self.sent_bytes[at : at + size], at + size
                send = self.protocol.send_continuation if number else self.protocol.send_binary
                send(piece, fin=number == len(sizes) - 1)
            self.protocol.send_ping(b"still there?")


@pytest.mark.parametrize("room", [1, 100, 1 << 18])
def test_a_websocket_is_a_stream_of_bytes(room: int) -> None:
    chance = Random(room)
    sent_bytes = chance.randbytes(min(2_000_000, 20_000 * room))
    talker = Talker(sent_bytes, chance)
    stream = open_stream(talker.route, WAIT_S)
    stream.settimeout(WAIT_S)
    got, buffer = bytearray(), memoryview(bytearray(room))
    while len(got) < len(sent_bytes):
        try:
            got += buffer[: stream.recv_into(buffer)]
        except TimeoutError:
            continue  # a ping, or a part of a frame
    assert got == sent_bytes
    stream.sendall(b"good-bye")
    stream.close()
    talker.thread.join(WAIT_S)
    assert talker.heard == b"good-bye"
    with pytest.raises(OSError, match=r"closed|descriptor"):
        stream.sendall(b"more")


def test_a_websocket_without_amqp_is_refused() -> None:
    talker = Talker(b"", Random(1), subprotocol="chat")
    with pytest.raises(ConnectionFailed, match=r"failed: server rejected .* HTTP 400"):
        open_stream(talker.route, WAIT_S)
    talker.thread.join(WAIT_S)


def test_a_silent_websocket_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        route = Route("127.0.0.1", listening.getsockname()[1], "here", websocket=True)
        with pytest.raises(ConnectionFailed, match="failed: no response in time"):
            open_stream(route, 0.2)
