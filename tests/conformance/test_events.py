"""Events are read as they were sent: properties, bodies and every other section of a message.

All cases of a client are sent together, once as single events, once as a batch and once with a key,
because the SDK needs half a second per link. Each case then has its own test.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.eventhub.exceptions import EventHubError

from tests.conformance.entity import Entity
from tests.conformance.readers import bodies, body
from tests.conformance.sdks import NO_RETRY, SDKS, Sdk, both_sdks

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("events"),  # its fixtures read and send for all tests of this file
]

ID = uuid.UUID("12345678-9abc-def0-0fed-cba987654321")
DATA, SEQUENCE, VALUE = (
    AmqpMessageBodyType.DATA,
    AmqpMessageBodyType.SEQUENCE,
    AmqpMessageBodyType.VALUE,
)


@dataclass(frozen=True)
class Sent:
    """A value that is sent, and what the SDK returns for it."""

    value: Any
    back: Any
    body_type: AmqpMessageBodyType = DATA


def same(value: Any) -> Sent:
    return Sent(value, value)


def typed(kind: str, value: Any) -> dict[str, Any]:
    """A value with its AMQP type, as the SDK's encoder takes it."""
    return {"TYPE": kind, "VALUE": value}


# The SDK reads strings, symbols and binaries all as bytes, and timestamps as milliseconds.
PROPERTIES = {
    "string": Sent("text", b"text"),
    "empty string": Sent("", b""),
    "unicode": Sent("Ключ 🏠", "Ключ 🏠".encode()),
    "long string": Sent("x" * 300, b"x" * 300),
    "bytes": same(b"\x00\xff"),
    "empty bytes": same(b""),
    "long bytes": same(bytes(range(256)) * 2),
    "bytearray": Sent(bytearray(b"abc"), b"abc"),
    "zero": same(0),
    "one": same(1),
    "127": same(127),
    "128": same(128),
    "-1": same(-1),
    "-128": same(-128),
    "-129": same(-129),
    "largest int": same(2**31 - 1),
    "smallest int": same(-(2**31)),
    "float": same(1.5),
    "infinity": same(float("inf")),
    "true": same(True),
    "false": same(False),
    "none": same(None),
    "uuid": same(ID),
    "time": Sent(datetime(2024, 5, 1, 12, 0, 0, 123000, tzinfo=UTC), 1714564800123),
    "time elsewhere": Sent(
        datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=3))), 1714554000000
    ),
    "naive time": Sent(datetime(2024, 5, 1, 12), 1714564800000),
    # AMQP types that the SDK never chooses for Python values.
    "long": Sent(typed("LONG", 2**63 - 1), 2**63 - 1),
    "negative long": Sent(typed("LONG", -(2**63)), -(2**63)),
    "uint": Sent(typed("UINT", 2**32 - 1), 2**32 - 1),
    "symbol": Sent(typed("SYMBOL", b"word"), b"word"),
    # The specification allows simple values only; the hub keeps them as bytes.
    "list": Sent([1, "a", None], [1, b"a", None]),
    "map": Sent({"a": {"b": [True]}}, {b"a": {b"b": [True]}}),
}

BODIES = {
    "bytes": Sent({"data_body": b"\x00\xff"}, [b"\x00\xff"]),
    "text": Sent({"data_body": "Ключ"}, ["Ключ".encode()]),
    "several": Sent({"data_body": [b"one", b"", b"three"]}, [b"one", b"", b"three"]),
    "sequence": Sent({"sequence_body": [1, "a", None, 2.5]}, [[1, b"a", None, 2.5]], SEQUENCE),
    "sequences": Sent({"sequence_body": [[1, 2], ["a"]]}, [[1, 2], [b"a"]], SEQUENCE),
    "string value": Sent({"value_body": "text"}, b"text", VALUE),
    "bytes value": Sent({"value_body": b"\x01"}, b"\x01", VALUE),
    "int value": Sent({"value_body": 42}, 42, VALUE),
    "float value": Sent({"value_body": 2.5}, 2.5, VALUE),
    "true value": Sent({"value_body": True}, True, VALUE),
    "uuid value": Sent({"value_body": ID}, ID, VALUE),
    "list value": Sent({"value_body": [1, [2.5], None]}, [1, [2.5], None], VALUE),
    "map value": Sent({"value_body": {"a": {b"b": -1}}}, {b"a": {b"b": -1}}, VALUE),
    "no value": Sent({"value_body": None}, None, VALUE),
    # Defects of the SDK: it omits a falsy value and a body without parts.
    "zero value": Sent({"value_body": 0}, None, VALUE),
    "false value": Sent({"value_body": False}, None, VALUE),
    "empty value": Sent({"value_body": ""}, None, VALUE),
    "no data": Sent({"data_body": []}, None, VALUE),
}

HEADER = {
    "durable": True,
    "priority": 7,
    "time_to_live": 60_000,
    "first_acquirer": True,
    "delivery_count": 3,
}
TEXTS = {
    "message_id": "message",
    "to": "to",
    "subject": "subject",
    "reply_to": "reply",
    "correlation_id": "correlation",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "group_id": "group",
    "reply_to_group_id": "reply group",
}
PLAIN = {
    "user_id": b"user",
    "absolute_expiry_time": 1_700_000_000_000,
    "creation_time": 1_600_000_000_000,
    "group_sequence": 7,
}
OWN_KEYS = {b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"}

MESSAGES: dict[str, Callable[[], EventData | AmqpAnnotatedMessage]] = {
    "full": lambda: AmqpAnnotatedMessage(
        data_body=b"full",
        header=HEADER,
        properties={**TEXTS, **PLAIN},
        application_properties={"a": 1},
        annotations={"x-opt-mine": "mine", b"x-opt-number": -7, "other": [1]},
        delivery_annotations={b"x-opt-way": "on its way"},
        footer={b"x-opt-sum": b"\x01\x02"},
    ),
    "forged": lambda: AmqpAnnotatedMessage(
        data_body=b"forged",
        annotations={
            b"x-opt-sequence-number": 9999,
            b"x-opt-offset": "9999",
            b"x-opt-enqueued-time": 1,
            b"x-opt-publisher": "me",
            b"x-opt-mine": "mine",
        },
    ),
    "many annotations": lambda: AmqpAnnotatedMessage(
        data_body=b"many", annotations={f"x-opt-{n:03}": "v" * 20 for n in range(200)}
    ),
    "int id": lambda: AmqpAnnotatedMessage(data_body=b"", properties={"message_id": 2**40}),
    "uuid id": lambda: AmqpAnnotatedMessage(
        data_body=b"", properties={"message_id": ID, "correlation_id": ID}
    ),
    "bytes id": lambda: AmqpAnnotatedMessage(data_body=b"", properties={"message_id": b"\x00"}),
    "event": lambda: described(EventData(b'{"a": 1}')),
    "content": lambda: EventData.from_message_content(b"avro", "avro/binary+1234"),
    "bare": lambda: EventData(b"bare"),
    "text": lambda: EventData("Ключ"),
    "parts": lambda: EventData([b"one", b"two"]),
}


def described(event: EventData) -> EventData:
    event.content_type = "application/json"
    event.correlation_id = "correlation"
    event.message_id = "message"
    return event


def with_property(value: Any) -> EventData:
    event = EventData(b"")
    event.properties = {"p": value, "after": 1}
    return event


def made() -> dict[str, EventData | AmqpAnnotatedMessage]:
    """New messages of every case: the SDK changes what it sends."""
    return (
        {f"property {name}": with_property(case.value) for name, case in PROPERTIES.items()}
        | {f"body {name}": AmqpAnnotatedMessage(**case.value) for name, case in BODIES.items()}
        | {name: make() for name, make in MESSAGES.items()}
    )


Exchanged = dict[str, EventData]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="session",
    params=[(client, how) for client in SDKS for how in ("events", "batch", "keyed")],
    ids=lambda param: "-".join(param),
)
async def exchanged(
    request: pytest.FixtureRequest,
    sdks: dict[str, Sdk],
    make_shared_entity: Callable[[int], Entity],
) -> Exchanged:
    """Every case, sent and received."""
    client, how = request.param
    sdk, single, cases = sdks[client], make_shared_entity(1), made()
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        if how == "events":
            for case in cases.values():
                await producer.send_event(case)
        elif how == "batch":
            await producer.send_batch(list(cases.values()))
        else:
            # With a key the SDK adds a header and annotations to each event.
            batch = await producer.create_batch(partition_key="key")
            for case in cases.values():
                raw = case.raw_amqp_message if isinstance(case, EventData) else case
                raw.annotations = raw.annotations or {}
                batch.add(case)
            await producer.send_batch(batch)
        events = await reader.take(len(cases))
    assert [event.sequence_number for event in events] == list(range(len(cases)))
    return dict(zip(cases, events, strict=True))


@pytest.mark.parametrize("name", PROPERTIES)
async def test_a_property(exchanged: Exchanged, name: str) -> None:
    event = exchanged[f"property {name}"]
    assert event.properties == {b"p": PROPERTIES[name].back, b"after": 1}
    assert type((event.properties or {})[b"p"]) is type(PROPERTIES[name].back)
    assert event.raw_amqp_message.application_properties == event.properties


@pytest.mark.parametrize("name", BODIES)
async def test_a_body(exchanged: Exchanged, name: str) -> None:
    event, case = exchanged[f"body {name}"], BODIES[name]
    assert event.body_type is case.body_type
    content: Any = event.body
    assert (content if case.body_type is VALUE else list(content)) == case.back


async def test_every_section(exchanged: Exchanged) -> None:
    message = exchanged["full"].raw_amqp_message
    assert list(message.body) == [b"full"]
    assert message.application_properties == {b"a": 1}
    assert message.footer == {b"x-opt-sum": b"\x01\x02"}
    assert message.properties is not None
    assert {name: message.properties[name] for name in {**TEXTS, **PLAIN}} == {
        **{name: text.encode() for name, text in TEXTS.items()},
        **PLAIN,
    }
    # The specification keeps delivery annotations for the next hop; the service returns them.
    assert message.delivery_annotations == {b"x-opt-way": b"on its way"}


async def test_the_header(exchanged: Exchanged) -> None:
    event = exchanged["full"]
    header = event.raw_amqp_message.header
    assert header is not None
    if event.partition_key is None:
        assert dict(header.items()) == HEADER
    else:
        # The SDK replaces it when it sets a key.
        assert header.durable is True
    assert (exchanged["bare"].raw_amqp_message.header is None) == (event.partition_key is None)


async def test_annotations(exchanged: Exchanged) -> None:
    event = exchanged["full"]
    annotations = dict(event.raw_amqp_message.annotations or {})
    own = OWN_KEYS | ({b"x-opt-partition-key"} if event.partition_key else set())
    assert {key: annotations.pop(key, None) for key in own} == {
        key: event.system_properties[key] for key in own
    }
    assert annotations == {b"x-opt-mine": b"mine", b"x-opt-number": -7, b"other": [1]}


async def test_system_properties(exchanged: Exchanged) -> None:
    event = exchanged["full"]
    assert event.system_properties[b"x-opt-sequence-number"] == event.sequence_number
    assert event.system_properties[b"x-opt-offset"] == (event.offset or "").encode()
    assert event.system_properties[b"message-id"] == b"message"
    assert event.system_properties[b"content-type"] == b"application/json"
    assert event.system_properties[b"user-id"] == b"user"


async def test_what_only_the_hub_may_write_cannot_be_forged(exchanged: Exchanged) -> None:
    event, before = exchanged["forged"], exchanged["full"]
    assert event.sequence_number == (before.sequence_number or 0) + 1
    assert int(event.offset or "") > int(before.offset or "")
    assert event.enqueued_time is not None
    assert event.enqueued_time > datetime(2020, 1, 1, tzinfo=UTC)
    annotations = event.raw_amqp_message.annotations or {}
    assert b"x-opt-publisher" not in annotations
    assert annotations[b"x-opt-mine"] == b"mine"


async def test_many_annotations(exchanged: Exchanged) -> None:
    annotations = exchanged["many annotations"].raw_amqp_message.annotations or {}
    assert {key for key in annotations if key[6:].isdigit()} == {
        b"x-opt-%03d" % number for number in range(200)
    }
    assert exchanged["many annotations"].sequence_number == annotations[b"x-opt-sequence-number"]


async def test_ids_keep_their_type(exchanged: Exchanged) -> None:
    def ids(name: str) -> tuple[Any, Any]:
        properties = exchanged[name].raw_amqp_message.properties
        assert properties is not None
        return properties.message_id, properties.correlation_id

    assert ids("int id") == (2**40, None)
    assert ids("uuid id") == (ID, ID)
    assert ids("bytes id") == (b"\x00", None)


async def test_the_properties_of_an_event(exchanged: Exchanged) -> None:
    event = exchanged["event"]
    assert event.content_type == "application/json"
    assert event.correlation_id == "correlation"
    assert event.message_id == "message"
    assert event.body_as_json() == {"a": 1}
    assert event.body_as_str() == '{"a": 1}'


async def test_message_content(exchanged: Exchanged) -> None:
    """What the schema registry encoders use."""
    content = exchanged["content"].__message_content__()
    assert content == {"content": b"avro", "content_type": "avro/binary+1234"}


async def test_the_bodies_of_events(exchanged: Exchanged) -> None:
    assert body(exchanged["text"]) == "Ключ".encode()
    assert exchanged["text"].body_as_str() == "Ключ"
    parts: Any = exchanged["parts"].body
    assert list(parts) == [b"one", b"two"]


async def test_a_bare_event_stays_bare(exchanged: Exchanged) -> None:
    event = exchanged["bare"]
    assert body(event) == b"bare"
    assert event.properties == {}
    assert event.raw_amqp_message.properties is None
    assert event.raw_amqp_message.footer == {}
    extra = {b"x-opt-partition-key"} if event.partition_key else set()
    assert set(event.raw_amqp_message.annotations or {}) == OWN_KEYS | extra


# -- what the SDK cannot do -----------------------------------------------------------------------


@both_sdks
async def test_the_sdk_cannot_encode_a_large_int(sdk: Sdk, single: Entity) -> None:
    """Beyond 32 bits it raises before sending; for a list the text is about sizes."""
    async with sdk.producer(single.connection, **NO_RETRY) as producer:
        with pytest.raises(EventHubError, match="Value supplied for int invalid: 2147483648"):
            await producer.send_event(with_property(2**31))
        with pytest.raises(ValueError, match="The combined size"):
            await producer.send_batch([with_property(2**31)])
    assert single.partition(0).log.empty


@both_sdks
async def test_the_sdk_cannot_send_on_what_it_received(sdk: Sdk, single: Entity) -> None:
    """The enqueued time of a received event is a large int."""
    async with sdk.producer(single.connection, **NO_RETRY) as producer, sdk.read(single) as reader:
        await producer.send_event(EventData(b"again"))
        [event] = await reader.take(1)
        with pytest.raises(ValueError, match="The combined size"):
            await producer.send_batch([event])
        # Without its annotations it can be sent, and gets new ones.
        event.raw_amqp_message.annotations = {}
        await producer.send_batch([event])
        events = await reader.take(2)
    assert bodies(events) == [b"again", b"again"]
    assert events[1].sequence_number == 1


@both_sdks
async def test_the_sdk_cannot_read_the_decimals_it_writes(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        await producer.send_event(with_property(Decimal("1.25")))
        assert "decimal.Overflow" in str(await reader.error())
