"""Proton sends: partitions and keys, outcomes, credit, and events of every shape."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for
from tests.conformance.proton.peer import (
    HUB,
    PARTITIONS,
    Message,
    bodies,
    connected,
    plain,
    proton,
    reactor,
    reader,
    sender,
    symbol,
    utils,
    work_until,
)


def test_an_event_goes_to_its_partition_and_comes_back(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        delivery = sender(connection, f"{HUB}/Partitions/2").send(Message(body="hello"))
        assert delivery.remote_state == proton.Delivery.ACCEPTED
        message = reader(connection, partition=2).receive()
        assert message.body == "hello"


def test_annotations_have_the_service_s_types(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        sender(connection).send(Message(body="hello"))
        annotations = reader(connection).receive().annotations
    # Proton distinguishes long from ulong, symbol from string, and timestamp from both.
    assert {type(key) for key in annotations} == {symbol}
    assert type(annotations[symbol("x-opt-sequence-number")]) is int
    assert annotations[symbol("x-opt-sequence-number")] == 0
    assert annotations[symbol("x-opt-offset")] == "0"
    assert type(annotations[symbol("x-opt-enqueued-time")]) is proton.timestamp


def test_without_partition_events_take_turns(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection, HUB)
        for number in range(8):
            link.send(Message(body=number))
    assert [p.log.next_sequence for p in hub.namespace.hub(HUB).partitions] == [2, 2, 2, 2]


@pytest.mark.parametrize("key", ["a", "meter 7", "ключ", "k" * 128])
def test_a_key_decides_the_partition(hub: EmbeddedHub, key: str) -> None:
    with connected(hub) as connection:
        keyed = Message(body=1, annotations={symbol("x-opt-partition-key"): key})
        sender(connection, HUB).send(keyed)
        message = reader(connection, partition=partition_for(key, PARTITIONS)).receive()
        assert message.annotations[symbol("x-opt-partition-key")] == key


def test_a_publisher_is_written_on_its_events(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        sender(connection, f"{HUB}/Publishers/meter-7").send(Message(body=1))
        message = reader(connection, partition=partition_for("meter-7", PARTITIONS)).receive()
        assert message.annotations[symbol("x-opt-publisher")] == "meter-7"


# -- outcomes and credit --------------------------------------------------------------------------


def test_settled_sends_need_no_outcome(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection, options=reactor.AtMostOnce())
        assert link.link.remote_snd_settle_mode == proton.Link.SND_SETTLED
        for number in range(50):
            link.send(Message(body=number))
        assert bodies(reader(connection), 50) == list(range(50))


def test_many_unsettled_sends_are_each_accepted(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection, options=reactor.AtLeastOnce()).link
        work_until(connection, lambda: link.credit >= 200)
        deliveries = [link.send(Message(body=number)) for number in range(200)]
        work_until(connection, lambda: all(delivery.settled for delivery in deliveries))
        assert {delivery.remote_state for delivery in deliveries} == {proton.Delivery.ACCEPTED}
        assert bodies(reader(connection, credit=300), 200) == list(range(200))


def test_credit_for_senders_is_renewed(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection, options=reactor.AtMostOnce()).link
        for number in range(2000):
            work_until(connection, lambda: link.credit > 0)
            link.send(Message(body=number))
        log = hub.namespace.hub(HUB).partitions[0].log
        work_until(connection, lambda: log.next_sequence == 2000)


def test_a_message_that_is_too_large_is_rejected_and_the_link_stays_open(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection)
        assert link.link.remote_max_message_size == 1024 * 1024
        reject(connection, link, Message(body=bytes(1_100_000)), "amqp:link:message-size-exceeded")
        link.send(Message(body="still there"))
        assert reader(connection).receive().body == "still there"


def test_a_bad_key_is_rejected(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        keyed = Message(body=1, annotations={symbol("x-opt-partition-key"): "k" * 129})
        reject(connection, sender(connection, HUB), keyed, "com.microsoft:argument-error")


def reject(connection: Any, link: Any, message: Any, condition: str) -> None:
    delivery = link.link.send(message)
    work_until(connection, lambda: delivery.settled)
    assert delivery.remote_state == proton.Delivery.REJECTED
    assert delivery.remote.condition.name == condition
    delivery.settle()


def test_a_rejected_send_is_an_exception(hub: EmbeddedHub) -> None:
    with connected(hub) as connection, pytest.raises(utils.SendException):
        sender(connection).send(Message(body=bytes(1_100_000)))


# -- what is in an event --------------------------------------------------------------------------

EVERY_TYPE = {
    "null": None,
    "true": True,
    "false": False,
    "string": "grüße",
    "symbol": symbol("sym"),
    "binary": b"\0\xff",
    "int": -5,
    "long": 1 << 40,
    "byte": proton.byte(-128),
    "ubyte": proton.ubyte(255),
    "short": proton.short(-32768),
    "ushort": proton.ushort(65535),
    "int32": proton.int32(-(1 << 31)),
    "uint": proton.uint(0xFFFFFFFF),
    "ulong": proton.ulong(0xFFFFFFFFFFFFFFFF),
    "float": proton.float32(0.5),
    "double": 1e300,
    "char": proton.char("é"),
    "timestamp": proton.timestamp(1714564800123),
    "uuid": UUID(int=7),
    "decimal32": proton.decimal32(1),
    "decimal64": proton.decimal64(2),
    "decimal128": proton.decimal128(bytes(range(16))),
}


def test_properties_of_every_type_keep_it(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        sender(connection).send(Message(body=1, properties=EVERY_TYPE))
        message = reader(connection).receive()
    properties = {name: plain(value) for name, value in message.properties.items()}
    assert properties == EVERY_TYPE
    assert [type(properties[name]) for name in EVERY_TYPE] == [type(v) for v in EVERY_TYPE.values()]


SHAPES = [
    *EVERY_TYPE.values(),
    [1, [2, "three"], {}],
    {"map": {"in": ["map"]}, 5: symbol("key")},
    proton.Described(symbol("a:descriptor"), [1, 2]),
    proton.Array(proton.UNDESCRIBED, proton.Data.INT, 1, 2, 3),
    "x" * 300,
    b"y" * 70_000,
]


def test_bodies_of_every_shape(hub: EmbeddedHub) -> None:
    with connected(hub) as connection:
        link = sender(connection)
        for shape in SHAPES:
            link.send(Message(body=shape))
        assert bodies(reader(connection), len(SHAPES)) == SHAPES


FIELDS: dict[str, Any] = {
    "body": b"data",
    "inferred": True,  # a data section, not a value
    "durable": True,
    "priority": 7,
    "ttl": 60.0,
    "first_acquirer": True,
    "delivery_count": 2,
    "id": UUID(int=9),
    "user_id": b"user",
    "address": "to",
    "subject": "subject",
    "reply_to": "reply",
    "correlation_id": proton.ulong(11),
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "expiry_time": 1.7e9,
    "creation_time": 1.6e9,
    "group_id": "group",
    "group_sequence": 3,
    "reply_to_group_id": "reply group",
    "properties": {"a": 1},
}


def test_every_section_and_field_is_kept(hub: EmbeddedHub) -> None:
    sent = Message(**FIELDS)
    sent.annotations = {symbol("x-opt-mine"): ["kept", 1]}
    sent.instructions = {symbol("x-opt-hop"): "delivery annotations reach the reader"}
    with connected(hub) as connection:
        sender(connection).send(sent)
        message = reader(connection).receive()
    assert {name: getattr(message, name) for name in FIELDS} == FIELDS
    assert message.annotations[symbol("x-opt-mine")] == ["kept", 1]
    assert message.instructions == sent.instructions
