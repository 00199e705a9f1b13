"""From a producer's payload to stored frames: kept, removed, added and refused parts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.frames import ByteReader
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    SINGLE_FORMAT,
    VALUE,
    Message,
    decode_message,
    encode_batch,
    encode_message,
    encode_section,
    scan,
)
from pumphouse.amqp.performatives import Transfer
from pumphouse.amqp.types import Described, Symbol, Timestamp, ULong
from pumphouse.errors import AmqpError, MalformedBytes
from pumphouse.hub.annotations import HUB_KEYS, METRIC_KEYS, parse_payload
from pumphouse.hub.frames.building import build_frames
from pumphouse.hub.links.delivery import address_run
from pumphouse.hub.storage.memory_log import MemoryLog

T0 = 1_700_000_000_000
EVERYTHING = 1 << 40

HEAD = encode_section(HEADER, [True, None, None, None, None])
PROPS = encode_section(PROPERTIES, ["id", None, None, "subject"])
APPLICATION = encode_section(APPLICATION_PROPERTIES, {"a": 1, "b": [True, {"c": b"d"}]})
BODY = encode_section(DATA, b"body")
FOOT = encode_section(FOOTER, {Symbol("f"): 1})
DELIVERY = encode_section(DELIVERY_ANNOTATIONS, {Symbol("way"): "kept"})


def annotated(**entries: Any) -> bytes:
    named = {Symbol(name.replace("_", "-")): value for name, value in entries.items()}
    return encode_section(MESSAGE_ANNOTATIONS, named)


def stored(payload: bytes, message_format: int = SINGLE_FORMAT, **options: Any) -> list[bytes]:
    """The stored messages of a payload, each in one transfer frame."""
    batch = parse_payload(payload, message_format)
    frames = build_frames(batch, sequence=10, offset=500, enqueued_ms=T0, **options)
    assert frames.starts[0] == 500
    reader, messages = ByteReader(1 << 20), []
    reader.feed(bytes(frames.data))
    while (frame := reader.frame()) is not None:
        transfer, after = decode_performative(frame.data, frame.start, frame.end)
        assert transfer == Transfer(
            handle=0, delivery_id=0, delivery_tag=b"\0", message_format=0, settled=True
        )
        messages.append(frame.data[after : frame.end])
    assert reader.pending == 0
    assert len(messages) == len(frames.starts) == batch.event_count
    return messages


def stamps(message: bytes) -> tuple[Any, ...]:
    """Sequence number, offset and time."""
    names = ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")
    return tuple(decode_message(message).annotations[name] for name in names)


def annotations_of(message: bytes) -> dict[Any, Any]:
    """Annotations that are not the hub's stamps."""
    annotations = dict(decode_message(message).annotations)
    for name in ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"):
        del annotations[name]
    return annotations


# -- kept and removed parts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections",
    [
        [BODY],
        [PROPS, BODY],
        [PROPS, APPLICATION, BODY, FOOT],
        [BODY, BODY, BODY],
        [encode_section(VALUE, {"deep": [1, 2]})],
        [encode_section(SEQUENCE, [1]), encode_section(SEQUENCE, [2])],
        [encode_section(DATA, bytes(70_000))],
        [FOOT, BODY, PROPS],  # not the order of the specification, but kept
        [encode_section(DATA, b"")],
    ],
)
def test_the_producers_sections_are_kept_byte_for_byte(sections: list[bytes]) -> None:
    (message,) = stored(b"".join(sections))
    assert message.endswith(b"".join(sections))
    assert stamps(message) == (10, "500", T0)
    assert isinstance(decode_message(message).annotations["x-opt-enqueued-time"], Timestamp)
    (inner,) = stored(encode_batch([b"".join(sections)]), BATCH_FORMAT)
    assert inner == message


def test_the_stored_order_is_header_annotations_body() -> None:
    (message,) = stored(BODY + annotated(x_user="u") + DELIVERY + HEAD + PROPS)
    assert message.startswith(HEAD + DELIVERY + b"\x00\x53\x72")
    assert message.endswith(BODY + PROPS)
    assert annotations_of(message) == {"x-user": "u"}


def test_delivery_annotations_are_kept() -> None:
    for payload in (DELIVERY + BODY, BODY + DELIVERY, HEAD + DELIVERY + annotated(x=1) + BODY):
        (message,) = stored(payload)
        assert decode_message(message).delivery_annotations == {"way": "kept"}
        assert message.count(DELIVERY) == 1


def test_each_event_of_a_batch_keeps_its_own_delivery_annotations() -> None:
    other = encode_section(DELIVERY_ANNOTATIONS, {Symbol("way"): "other"})
    batch = [DELIVERY + BODY, DELIVERY + BODY, other + BODY, BODY, BODY + other]
    received = map(decode_message, stored(encode_batch(batch), BATCH_FORMAT))
    ways = [message.delivery_annotations.get("way") for message in received]
    assert ways == ["kept", "kept", "other", None, "other"]


def test_many_delivery_annotations_are_kept() -> None:
    many = {Symbol(f"way-{number}"): "x" * 20 for number in range(200)}
    (message,) = stored(encode_section(DELIVERY_ANNOTATIONS, many) + BODY)
    assert decode_message(message).delivery_annotations == many


def test_an_old_metric_is_removed_from_a_producers_event() -> None:
    """An event that was read and sent again still has the metric of the other partition."""
    old = {Symbol(name): 7 for name in METRIC_KEYS}
    (message,) = stored(encode_section(DELIVERY_ANNOTATIONS, {**old, Symbol("way"): 1}) + BODY)
    assert decode_message(message).delivery_annotations == {"way": 1}
    for nothing_left in (old, {}):
        (message,) = stored(encode_section(DELIVERY_ANNOTATIONS, nothing_left) + BODY)
        assert DELIVERY_ANNOTATIONS not in [code for code, *_ in scan(message, 0, len(message))]


@pytest.mark.parametrize("name", sorted(HUB_KEYS - {"x-opt-partition-key"}))
def test_annotations_of_the_hub_are_removed_from_a_producers_event(name: str) -> None:
    """An event that was read and sent again still has its old annotations."""
    (message,) = stored(annotated(**{name: "forged", "x-user": "kept"}) + BODY)
    assert annotations_of(message) == {"x-user": "kept"}
    assert stamps(message) == (10, "500", T0)
    assert b"forged" not in message


def test_other_annotations_are_kept_byte_for_byte() -> None:
    entries: dict[Any, Any] = {
        Symbol("x-list"): [1, None, "two"],
        Symbol("x-map"): {"k": Timestamp(5)},
        Symbol("x-described"): Described(ULong(7), b"seven"),
        Symbol(""): None,
        "x-string-key": 1.5,
        ULong(99): True,
    }
    (message,) = stored(encode_section(MESSAGE_ANNOTATIONS, entries) + BODY)
    assert annotations_of(message) == entries
    for name, value in entries.items():
        assert encode(name) + encode(value) in message


def test_large_annotation_maps_are_kept() -> None:
    """More than 255 bytes, more than 255 keys and values, and both sides of either limit."""
    for count, size in product((1, 20, 124, 125, 200), (1, 50, 300)):
        entries: dict[Any, Any] = {Symbol(f"x-{n:03}"): "v" * size for n in range(count)}
        (message,) = stored(encode_section(MESSAGE_ANNOTATIONS, entries) + BODY, publisher="p")
        assert annotations_of(message) == {**entries, "x-opt-publisher": "p"}, (count, size)
        assert stamps(message) == (10, "500", T0), (count, size)
        assert message.endswith(BODY), (count, size)


def test_annotation_maps_around_255_bytes_are_kept() -> None:
    for size in range(120, 140):
        (message,) = stored(annotated(x="v" * size) + BODY)
        assert annotations_of(message) == {"x": "v" * size}


@pytest.mark.parametrize(
    "descriptor",
    [encode(Symbol("amqp:{}")), b"\x80" + bytes(7)],
    ids=["named", "eight bytes"],
)
def test_unusual_section_descriptors_are_replaced_by_the_usual_ones(descriptor: bytes) -> None:
    """They are legal, but the official client knows only the usual ones."""

    def encode_with_descriptor(code: int, name: str, value: Any) -> bytes:
        if descriptor[0] == 0x80:
            return b"\x00" + descriptor + bytes((code,)) + encode(value)
        return b"\x00" + encode(Symbol(f"amqp:{name}")) + encode(value)

    payload = (
        encode_with_descriptor(HEADER, "header:list", [True, None, None, None, None])
        + encode_with_descriptor(MESSAGE_ANNOTATIONS, "message-annotations:map", {Symbol("x"): 1})
        + encode_with_descriptor(DATA, "data:binary", b"body")
    )
    usual = HEAD + annotated(x=1) + BODY
    assert stored(payload) == stored(usual)
    assert stored(encode_batch([payload, payload]), BATCH_FORMAT) == stored(
        encode_batch([usual, usual]), BATCH_FORMAT
    )


# -- keys and publishers --------------------------------------------------------------------------


def key_of(payload: bytes, message_format: int = BATCH_FORMAT) -> tuple[str | None, list[Any]]:
    """The key of the batch, and those of its events."""
    batch = parse_payload(payload, message_format)
    events = [annotations_of(m).get("x-opt-partition-key") for m in stored(payload, message_format)]
    return batch.key, events


def keyed(key: Any, body: bytes = BODY) -> bytes:
    return annotated(x_opt_partition_key=key) + body


def test_the_key_of_a_single_event() -> None:
    assert key_of(keyed("k"), SINGLE_FORMAT) == ("k", ["k"])
    assert key_of(BODY, SINGLE_FORMAT) == (None, [None])
    assert key_of(keyed("é" * 128), SINGLE_FORMAT) == ("é" * 128, ["é" * 128])
    assert key_of(keyed(""), SINGLE_FORMAT) == ("", [""])


def test_the_key_of_a_batch_comes_from_outside_or_from_its_first_event() -> None:
    outer = {Symbol("x-opt-partition-key"): "outer"}
    assert key_of(encode_batch([BODY, BODY], outer)) == ("outer", ["outer", "outer"])
    assert key_of(encode_batch([keyed("in"), BODY])) == ("in", ["in", "in"])
    assert key_of(encode_batch([BODY, keyed("in")])) == ("in", ["in", "in"])
    assert key_of(encode_batch([keyed("in"), BODY], outer)) == ("outer", ["in", "outer"])
    assert key_of(encode_batch([BODY, BODY])) == (None, [None, None])


@pytest.mark.parametrize("key", [None, 7, b"k", ["k"]])
def test_a_key_that_is_not_a_string_is_an_ordinary_annotation(key: Any) -> None:
    """It is kept unchanged, and once: two entries with one name are not a valid map."""
    assert key_of(keyed(key), SINGLE_FORMAT) == (None, [key])
    outer = {Symbol("x-opt-partition-key"): "outer"}
    assert key_of(encode_batch([keyed(key), BODY], outer)) == ("outer", [key, "outer"])


@pytest.mark.parametrize(
    "build", [lambda k: (keyed(k), 0), lambda k: (encode_batch([keyed(k)]), 1)]
)
def test_a_key_too_long_is_refused(build: Any) -> None:
    payload, batched = build("k" * 129)
    with pytest.raises(AmqpError, match="at most 128 characters, found 129") as caught:
        parse_payload(payload, BATCH_FORMAT if batched else SINGLE_FORMAT)
    assert caught.value.condition == "com.microsoft:argument-error"


def test_a_publisher_is_written_onto_every_event() -> None:
    for message in stored(encode_batch([BODY, keyed("p")]), BATCH_FORMAT, publisher="p"):
        assert annotations_of(message)["x-opt-publisher"] == "p"


def test_events_of_a_batch_keep_their_own_prefix() -> None:
    """Each event keeps its own header and annotations."""
    events = [
        BODY,
        BODY,
        HEAD + BODY,
        HEAD + annotated(x=1) + BODY,
        HEAD + annotated(x=1) + PROPS + BODY,
        HEAD + annotated(x=2) + BODY,
        BODY + DELIVERY,
        BODY + DELIVERY,
        b"",
        BODY,
    ]
    received = [decode_message(message) for message in stored(encode_batch(events), BATCH_FORMAT)]
    assert [bool(message.header) for message in received] == [False] * 2 + [True] * 4 + [False] * 4
    assert [message.annotations.get("x") for message in received] == [None] * 3 + [1, 1, 2] + [
        None
    ] * 4
    assert [message.data for message in received] == [(b"body",)] * 8 + [(), (b"body",)]
    assert [message.annotations["x-opt-sequence-number"] for message in received] == [
        *range(10, 20)
    ]


def test_bytes_in_delivery_annotations_are_not_taken_for_the_body() -> None:
    """The last bytes of these delivery annotations look like a section."""
    first = BODY + encode_section(DELIVERY_ANNOTATIONS, {Symbol("d"): BODY})
    other = encode_section(DATA, b"forged")
    second = BODY + encode_section(DELIVERY_ANNOTATIONS, {Symbol("d"): other})
    received = stored(encode_batch([first, second]), BATCH_FORMAT)
    assert [decode_message(message).data for message in received] == [(b"body",), (b"body",)]


# -- refused payloads -----------------------------------------------------------------------------

MALFORMED = [
    b"\xff",
    BODY[:-1],
    BODY + b"\x00",
    b"\x00\x53\x10\xc0\x01\x00",  # an open, which is not a section
    b"\x00\x53\x72\x45",  # annotations that are a list
    b"\x00\x53\x72\xc1\x01\x01",  # one key or value
    b"\x00\x53\x72\xc1\x04\x01\xa3\x01\x78" + BODY,  # a key without a value
    b"\x00\x53\x72\xc1\x05\x02\xa3\x01\x78\x40\x40" + BODY,  # bytes after the last entry
    b"\x00\x53\x72\xc1\x03\x02\x45\x40" + BODY,  # a list for a key
    b"\x00\x53\x72\xc1\x04\x02\xc1\x01\x00\x40" + BODY,  # a map for a key
    b"\x00\x53\x72\xc1\x09\x04\xa3\x01\x78\x40\xa3\x01\x78\x40" + BODY,  # the same key twice
    b"\x00\x53\x72\xc1\x08\x02\xa3\x01\x78\xc0\x02\x01\xff" + BODY,  # an invalid value
    b"\x00\x53\x72\xd1\xff\xff\xff\xff\x00\x00\x00\x02" + BODY,
    b"\x00\x53\x72\xd1\x00\x00\x00\x04\xff\xff\xff\xff" + BODY,
    b"\x00\x53\x71\x45" + BODY,  # delivery annotations that are a list
    b"\x00\x53\x71\xc1\x08\x02\xa3\x01\x78\xc0\x02\x01\xff" + BODY,  # an invalid value in them
    b"\x00\x53\x73\xc5\x01\x00" + BODY,  # a constructor that does not exist
]


@pytest.mark.parametrize("inner", MALFORMED, ids=lambda inner: inner[:12].hex())
def test_a_malformed_event_refuses_the_whole_batch(inner: bytes) -> None:
    with pytest.raises(MalformedBytes):
        parse_payload(inner, SINGLE_FORMAT)
    for batch in ([inner], [BODY, inner], [BODY, inner, BODY], [HEAD + BODY, HEAD + inner]):
        with pytest.raises(MalformedBytes):
            parse_payload(encode_batch(batch), BATCH_FORMAT)


@pytest.mark.parametrize("value", ["text", 1, None, [b"x"]])
def test_a_batch_entry_that_is_not_binary_is_refused(value: Any) -> None:
    with pytest.raises(MalformedBytes, match="a data section must hold binary"):
        parse_payload(encode_section(DATA, value), BATCH_FORMAT)


@pytest.mark.parametrize("message_format", [1, 0x80013701, 0xFFFFFFFF])
def test_an_unknown_message_format_is_refused(message_format: int) -> None:
    with pytest.raises(AmqpError, match=f"0x{message_format:08x} is not supported") as caught:
        parse_payload(BODY, message_format)
    assert caught.value.condition == "amqp:not-implemented"


# -- any batches ----------------------------------------------------------------------------------

names = st.text("abcx-", max_size=8).map(lambda text: Symbol("x-" + text))
values = st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=40) | st.binary()
events = st.builds(
    Message,
    annotations=st.dictionaries(names, values, max_size=4),
    delivery_annotations=st.dictionaries(names, values, max_size=1),
    application=st.dictionaries(st.text(max_size=5), values, max_size=3),
    data=st.lists(st.binary(max_size=300), min_size=1, max_size=2).map(tuple),
)


@given(
    st.lists(st.lists(events, min_size=1, max_size=6), min_size=1, max_size=4),
    st.none() | st.text(max_size=20),
    st.integers(0, 65535),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2000),
)
@settings(max_examples=40)
def test_any_batches_pass_through_the_log_to_a_reader(
    batches: list[list[Message]],
    key: str | None,
    channel: int,
    handle: int,
    delivery_id: int,
    segment_bytes: int,
) -> None:
    """Events are read in order, each in its own frame, with the numbers of link and log."""
    log = MemoryLog(segment_bytes=segment_bytes)
    outer = {} if key is None else {Symbol("x-opt-partition-key"): key}
    for number, batch in enumerate(batches):
        payload = encode_batch(map(encode_message, batch), outer)
        log.append(parse_payload(payload, BATCH_FORMAT), T0 + number)
    sent = [(number, event) for number, batch in enumerate(batches) for event in batch]
    reader, sequence = ByteReader(1 << 20), 0
    while (run := log.read(sequence, 3, EVERYTHING)) is not None:
        first = (delivery_id + sequence) % 2**32
        sequence = run.sequence + len(run.starts)
        reader.feed(bytes(address_run(run, channel, handle, first)))
        for number_in_log in range(run.sequence, sequence):
            frame = reader.frame()
            assert frame is not None
            assert frame.channel == channel
            transfer, after = decode_performative(frame.data, frame.start, frame.end)
            assert isinstance(transfer, Transfer)
            assert (transfer.handle, transfer.delivery_id) == (
                handle,
                (delivery_id + number_in_log) % 2**32,
            )
            number, event = sent[number_in_log]
            message = frame.data[after : frame.end]
            received = decode_message(message)
            sequence_number, offset, ms = stamps(message)
            assert (sequence_number, ms) == (number_in_log, T0 + number)
            assert log.after_offset(int(offset), inclusive=True) == number_in_log
            assert annotations_of(message) == {**event.annotations, **outer}
            assert (received.application, received.data) == (event.application, event.data)
            assert received.delivery_annotations == event.delivery_annotations
    assert sequence == len(sent)
    assert reader.pending == 0
