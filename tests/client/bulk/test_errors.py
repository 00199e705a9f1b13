"""Ranges that fail: refused, evicted, disconnected; and peers that are not a hub."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from pumphouse.client.bulk.client import (
    BATCH_ROWS_MAX,
    BulkClient,
    RangeOptions,
    read_range,
)
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.tokens import RENEW_S
from pumphouse.client.sas import sign
from pumphouse.clock import MovableClock
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubNotFound,
    OptionError,
    PumphouseError,
)
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ServerOptions
from tests.client.bulk.hub_entity import (
    NO_RETRIES,
    WAIT_S,
    Entity,
    eventually,
    filled_entity,
    numbered_messages,
    sequences,
    start_waiting_range,
)

# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (5, 4), (-2, -1)])
def test_an_invalid_range_is_refused(server: EmbeddedHub, first: int, last: int) -> None:
    with pytest.raises(OptionError, match=f"invalid range {first} to {last}"):
        read_range(filled_entity(server).connection, "0", first, last)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch_rows": 0}, f"batch_rows must be from 1 to {BATCH_ROWS_MAX} \\(got 0\\)"),
        ({"batch_rows": BATCH_ROWS_MAX + 1}, "batch_rows"),
        ({"batch_bytes": 10}, "batch_bytes must be from 65536"),
        ({"batch_bytes": 1 << 40}, "batch_bytes"),
        ({"deadline_s": 0.0}, "deadline_s must be above zero"),
        ({"columns": ("mine",)}, "'mine' is not one of them"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        RangeOptions(**options)


def test_an_unreachable_hub_raises_connection_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    connection = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=secret;"
    connection += "EntityPath=e;UseDevelopmentEmulator=true"
    with pytest.raises(ConnectionFailed, match=f"cannot connect to 127.0.0.1:{port}") as failed:
        list(read_range(connection, "0", 0, 1))
    assert "secret" not in str(failed.value)


def test_a_wrong_key_is_refused(server: EmbeddedHub) -> None:
    connection = filled_entity(server).connection
    key = connection.partition("SharedAccessKey=")[2].partition(";")[0]
    wrong = connection.replace(key, "bm90IHRoZSBrZXk=")
    with pytest.raises(AuthError) as failed:
        list(read_range(wrong, "0", 0, 1))
    assert "bm90IHRoZSBrZXk=" not in str(failed.value)


def test_a_send_key_cannot_read(server: EmbeddedHub) -> None:
    eh = filled_entity(server)
    server.create_rule("bulk-sender", [Claim.SEND])
    with pytest.raises(AuthError, match="Listen"):
        list(read_range(server.connection_string(eh.name, "bulk-sender"), "0", 0, 1))


@pytest.mark.parametrize(
    ("partition", "options", "kind"),
    [
        ("0", RangeOptions(group="nobody"), HubNotFound),
        ("7", RangeOptions(), AmqpError),
        ("0", RangeOptions(epoch=-1), AmqpError),
    ],
)
def test_unknown_partitions_and_groups_are_refused(
    server: EmbeddedHub, partition: str, options: RangeOptions, kind: type[PumphouseError]
) -> None:
    with pytest.raises(kind):
        list(read_range(filled_entity(server).connection, partition, 0, 1, options))


def test_an_unknown_hub_is_refused(server: EmbeddedHub) -> None:
    with pytest.raises(PumphouseError):
        list(read_range(server.connection_string(), "0", 0, 1, hub="nothing"))


# --- Epochs and other readers --------------------------------------------------------------------


def test_a_lower_epoch_is_refused(eh: Entity) -> None:
    reading = start_waiting_range(eh, epoch=7, receiver_name="first")
    with pytest.raises(AmqpError, match="Receiver 'first' with a higher epoch '7'") as refused:
        list(read_range(eh.connection, "0", 0, 5, RangeOptions(epoch=6, receiver_name="second")))
    assert refused.value.condition == "amqp:link:stolen"
    with pytest.raises(AmqpError, match="non-epoch receiver is not allowed"):
        list(read_range(eh.connection, "0", 0, 5))
    reading.close()  # type: ignore[attr-defined]


def test_a_higher_epoch_evicts(eh: Entity) -> None:
    reading = start_waiting_range(eh, epoch=7)
    began = time.monotonic()
    taking = RangeOptions(epoch=8, receiver_name="thief")
    assert sequences(read_range(eh.connection, "0", 0, 5, taking)) == [0, 1, 2, 3, 4]
    with pytest.raises(AmqpError, match="with higher epoch of '8' is created") as evicted:
        next(reading)
    assert evicted.value.condition == "amqp:link:stolen"
    assert time.monotonic() - began < 10
    assert list(reading) == []


def test_too_many_readers(eh: Entity) -> None:
    reading = [start_waiting_range(eh) for _ in range(5)]
    with pytest.raises(AmqpError) as refused:
        list(read_range(eh.connection, "0", 0, 5))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    for reader in reading:
        reader.close()  # type: ignore[attr-defined]
    eventually(lambda: eh.readers == 0)


# --- Interrupted ranges --------------------------------------------------------------------------


def test_an_abandoned_range_closes_its_connection(eh: Entity, server: EmbeddedHub) -> None:
    reading = start_waiting_range(eh)
    assert eh.readers == 1
    reading.close()  # type: ignore[attr-defined]
    eventually(lambda: eh.readers == 0 and not server.server.connections)


def test_one_range_at_a_time(eh: Entity, server: EmbeddedHub) -> None:
    eh.put(numbered_messages(range(10)))
    client = BulkClient(eh.connection)
    with pytest.raises(OptionError, match="closed> cannot read now"):
        client.read_range("0", 0, 10)
    with client:
        reading = client.read_range("0", 0, 10, RangeOptions(batch_rows=5))
        next(reading)
        with pytest.raises(OptionError, match="open> cannot read now: read one range at a"):
            next(client.read_range("0", 0, 10))
        # An unfinished range closes its connection; the next one opens another.
        reading.close()  # type: ignore[attr-defined]
        assert repr(client).endswith("closed>")
        assert sequences(client.read_range("0", 0, 10)) == list(range(10))
    with pytest.raises(OptionError, match="in a `with` block"):
        client.partition_properties("0")
    eventually(lambda: not server.server.connections)


def test_a_hub_deleted_during_a_range_is_reported(eh: Entity, server: EmbeddedHub) -> None:
    reading = start_waiting_range(eh)
    server.delete_hub(eh.name)
    with pytest.raises(PumphouseError, match=r"deleted|not be found|detach"):
        next(reading)


def test_a_hub_that_stops_is_reported() -> None:
    with EmbeddedHub() as server:
        reading = start_waiting_range(Entity(server), retry=NO_RETRIES)
    with pytest.raises(ConnectionFailed, match="closed the connection: The hub is shutting down"):
        next(reading)


# --- Time ----------------------------------------------------------------------------------------


def test_heartbeats_keep_both_sides_alive() -> None:
    """The hub drops a client after 0.8 s of silence, and sends a heartbeat every 0.1 s."""
    options = ServerOptions(idle_timeout_s=0.8, enforce_idle=True)
    with EmbeddedHub(options=options) as server:
        eh = Entity(server)
        eh.put(numbered_messages(range(3)))
        later = threading.Timer(2.0, eh.put, [numbered_messages(range(3, 6))])
        later.start()
        with BulkClient(eh.connection, options=ConnectionOptions(idle_s=0.2)) as client:
            assert sequences(client.read_range("0", 0, 6)) == list(range(6))
        later.join()


def test_a_token_is_renewed_while_a_range_is_read(eh: Entity) -> None:
    eh.put(numbered_messages(range(100)))
    clock = MovableClock()
    with BulkClient(eh.connection, options=ConnectionOptions(clock=clock)) as client:
        reading = client.read_range("0", 0, 100, RangeOptions(batch_rows=10))
        next(reading)
        put = client._token.renew_at
        clock.advance(RENEW_S + 1)
        rest = list(reading)
        assert client._token.renew_at > put
        assert sum(batch.num_rows for batch in rest) == 90
        # The reply has arrived, or arrives while the next range is read.
        assert len(sequences(client.read_range("0", 0, 100))) == 100
        assert client._token._renewal is None


def test_a_refused_renewal_is_raised() -> None:
    clock = MovableClock()
    with EmbeddedHub() as server:
        eh = Entity(server)
        eh.put(numbered_messages(range(5)))
        with BulkClient(eh.connection, options=ConnectionOptions(clock=clock)) as client:
            reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=5, deadline_s=30))
            next(reading)
            server._call(server.namespace.rules.clear)
            clock.advance(RENEW_S + 1)
            with pytest.raises(AuthError, match="No access rule"):
                next(reading)


def test_a_given_signature_is_not_renewed(eh: Entity, server: EmbeddedHub) -> None:
    eh.put(numbered_messages(range(20)))
    clock = MovableClock()
    given = parse_connection_string(eh.connection)
    resource = given.resource(eh.name)
    signature = sign(resource, given.key_name, given.key, int(time.time()) + 100)
    lent = replace(given, key="", key_name="", signature=signature)
    with BulkClient(lent, options=ConnectionOptions(clock=clock)) as client:
        reading = client.read_range("0", 0, 20, RangeOptions(batch_rows=10))
        next(reading)
        put = client._token.renew_at
        clock.advance(RENEW_S + 1)
        assert len(list(reading)) == 1
        assert client._token.renew_at == put


class Peer:
    """A server that accepts one connection and sends given bytes."""

    def __init__(self, sent_bytes: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        port = self.listening.getsockname()[1]
        self.connection = (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;"
            "EntityPath=e;UseDevelopmentEmulator=true"
        )
        self.sent_bytes = sent_bytes
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        talking, _ = self.listening.accept()
        with talking:
            talking.sendall(self.sent_bytes)
            while talking.recv(1000):
                pass

    def close(self) -> None:
        self.thread.join(WAIT_S)
        self.listening.close()


@pytest.mark.parametrize(
    ("sent_bytes", "why"),
    [
        (b"", "did not open the connection in 0.3 s"),
        (b"AMQP\x03\x01\x00\x00", "did not open the connection in 0.3 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", "sent invalid AMQP"),
        (b"AMQP\x03\x01\x00\x00\x00\x00\x00\x01\x02\x01\x00\x00", "frame of 1 bytes"),
        (b"AMQP\x03\x01\x00\x00\x7f\x00\x00\x00\x02\x01\x00\x00", "the limit is 1048576"),
    ],
)
def test_a_peer_that_is_not_a_hub_is_reported(sent_bytes: bytes, why: str) -> None:
    peer = Peer(sent_bytes)
    options = ConnectionOptions(connect_s=0.3)
    with pytest.raises(ConnectionFailed, match=why), BulkClient(peer.connection, options=options):
        pass
    peer.close()
