"""The fast parser of batches, compared with a slow one that goes section by section."""

from collections.abc import Iterator
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.composites import decode_performative, to_described
from pumphouse.amqp.frames import HEAD
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    SINGLE_FORMAT,
    VALUE,
    Header,
    Message,
    Properties,
    decode_message,
    encode_batch,
    encode_message,
    encode_section,
)
from pumphouse.amqp.performatives import Transfer
from pumphouse.amqp.types import Described, Symbol
from pumphouse.hub.annotations import (
    parse_payload,
)
from pumphouse.hub.frames.building import MESSAGE_AT, build_frames
from pumphouse.hub.storage.memory_log import MemoryLog
from tests.hub.events import batch_of, bodies_of
from tests.hub.slow_parsing import events, outcome, parse_fast, parse_slow

# -- any event ------------------------------------------------------------------------------------

BODIES = st.binary(max_size=6) | st.sampled_from([bytes(248), bytes(255), bytes(256), bytes(300)])
TEXTS = st.text("kx", max_size=4)
ENTRIES = st.dictionaries(TEXTS.map(Symbol), TEXTS | st.integers(0, 300), max_size=2)
KEYED = st.sampled_from([{}, {Symbol("x-opt-partition-key"): "a"}, {Symbol("x-opt-offset"): "9"}])

SECTIONS = st.one_of(
    st.just(encode(to_described(Header(durable=True)))),
    ENTRIES.map(lambda entries: encode_section(DELIVERY_ANNOTATIONS, entries)),
    st.tuples(ENTRIES, KEYED).map(lambda two: encode_section(MESSAGE_ANNOTATIONS, two[0] | two[1])),
    st.just(encode(to_described(Properties(message_id="m")))),
    ENTRIES.map(lambda entries: encode_section(APPLICATION_PROPERTIES, entries)),
    BODIES.map(lambda body: encode_section(DATA, body)),
    BODIES.map(lambda body: encode(Described(Symbol("amqp:data:binary"), body))),
    st.lists(st.integers(0, 5), max_size=3).map(lambda items: encode_section(SEQUENCE, items)),
    st.sampled_from([None, True, 7, "text", b"", [], {}]).map(lambda v: encode_section(VALUE, v)),
    ENTRIES.map(lambda entries: encode_section(FOOTER, entries)),
)
EVENTS = st.lists(SECTIONS, max_size=4).map(b"".join)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Similar events, as in real batches, and sometimes a different one."""
    lead = draw(EVENTS)
    similar = [lead + tail for tail in draw(st.lists(EVENTS, max_size=6))]
    return encode_batch([*similar, *draw(st.lists(EVENTS, max_size=2))], draw(KEYED))


@given(batches())
def test_the_fast_parser_finds_the_same_events(payload: bytes) -> None:
    assert outcome(parse_fast, payload) == outcome(parse_slow, payload)


@given(batches(), st.data())
def test_the_fast_parser_refuses_the_same_damage(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    assert outcome(parse_fast, cut) == outcome(parse_slow, cut)


def ordinary_batch(*keys: str) -> bytes:
    """Keyed events as the official clients send them, with short and long bodies."""
    bodies = (b"", b"x", b"y" * 9, b"z" * 260)
    return encode_batch(
        encode_message(
            Message(
                header=Header(durable=True),
                annotations={Symbol("x-opt-partition-key"): key},
                data=(body,),
            )
        )
        for key in keys
        for body in bodies
    )


def test_the_events_of_an_ordinary_batch_are_one_group() -> None:
    batch = parse_fast(ordinary_batch("home-7"))
    assert [len(group.bodies) for group in batch.groups] == [4]
    assert batch.key == batch.groups[0].prefix.key == "home-7"


def test_keys_of_the_same_length_are_distinguished() -> None:
    payload = ordinary_batch("a", "b", "a")
    assert [prefix.key for prefix, _ in events(parse_fast(payload))] == [*"aaaabbbbaaaa"]


def test_both_parsers_agree_on_a_batch_cut_anywhere() -> None:
    payload = ordinary_batch("a")
    for end in range(len(payload)):
        assert outcome(parse_fast, payload[:end]) == outcome(parse_slow, payload[:end])


def test_both_parsers_agree_on_any_wrong_byte() -> None:
    payload = ordinary_batch("a")
    for at, byte in enumerate(payload):
        for by in (1, -1, 8, -8, 128):
            damaged = payload[:at] + bytes([(byte + by) % 256]) + payload[at + 1 :]
            assert outcome(parse_fast, damaged) == outcome(parse_slow, damaged), (at, by)


# -- frames ---------------------------------------------------------------------------------------


def frames_in(data: bytes) -> Iterator[bytes]:
    pos = 0
    while pos < len(data):
        size = HEAD.unpack_from(data, pos)[0]
        yield data[pos : pos + size]
        pos += size


def test_frames_contain_their_sequence_number_and_offset() -> None:
    for case in product(
        ("", "n" * 250),
        (None, Header(priority=3)),
        (None, "meter-1"),
        (0, 8, 95, 999_900, 10**18 - 150),
    ):
        check_frames(*case)


def check_frames(note: str, header: Header | None, publisher: str | None, offset: int) -> None:
    sent = [
        Message(header=header, annotations={Symbol("note"): note}, data=(bytes(n),))
        for n in (0, 10, 300, 1)
    ]
    batch = parse_payload(encode_batch(map(encode_message, sent)), BATCH_FORMAT)
    built = build_frames(batch, 40, offset, 1_700_000_000_000, publisher, origin=offset)
    frames = list(frames_in(bytes(built.data)))
    assert built.starts == [0, *(sum(map(len, frames[:n])) for n in (1, 2, 3))]
    for number, (message, frame) in enumerate(zip(sent, frames, strict=True)):
        transfer, after = decode_performative(frame, 8, len(frame))
        assert after == MESSAGE_AT
        assert transfer == Transfer(
            handle=0, delivery_id=0, delivery_tag=b"\0", message_format=0, settled=True
        )
        read = decode_message(frame, after, len(frame))
        expected = {
            "x-opt-sequence-number": 40 + number,
            "x-opt-offset": str(offset + built.starts[number]),
            "x-opt-enqueued-time": 1_700_000_000_000,
            "note": note,
        } | ({} if publisher is None else {"x-opt-publisher": publisher})
        assert read.annotations == expected, (note, header, publisher, offset)
        assert (read.header, read.data) == (header, message.data)


def test_offsets_may_get_more_digits_within_a_batch() -> None:
    batch = parse_payload(encode_batch([encode_message(Message(data=(b"",)))] * 30), BATCH_FORMAT)
    built = build_frames(batch, 0, 0, 0)
    widths = [len(str(start)) for start in built.starts]
    assert {1, 3, 4} <= set(widths)
    smallest = min(map(len, frames_in(bytes(built.data))))
    assert [len(frame) for frame in frames_in(bytes(built.data))] == [
        smallest + width - 1 for width in widths
    ]


def test_annotations_may_have_any_size() -> None:
    """If the size of the map does not fit one byte, four are used."""
    for size in range(90, 180):
        sent = Message(annotations={Symbol("note"): "n" * size}, data=(b"",))
        built = build_frames(parse_payload(encode_message(sent), SINGLE_FORMAT), 0, 0, 0)
        read = decode_message(bytes(built.data), MESSAGE_AT)
        assert read.annotations["note"] == "n" * size


def test_frames_follow_one_another_in_a_segment() -> None:
    log = MemoryLog()
    for bodies in ([b"a", b"b"], [b"c"], [b"d"]):
        log.append(batch_of(bodies), 0)
    assert len(log.segments) == 1
    assert bodies_of(log.read(0, 9, 1 << 20)) == [b"a", b"b", b"c", b"d"]
