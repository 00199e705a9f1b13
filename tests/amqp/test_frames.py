"""Frames of a byte stream in any pieces, and invalid frames."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    APART_MIN,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    ByteReader,
    check_fits,
    encode_frame,
)
from pumphouse.amqp.performatives import Close, End, SaslOutcome, Transfer
from pumphouse.errors import LocalProtocolError, RemoteProtocolError

Body = tuple[int, int, bytes]

FRAMES = [
    encode_frame(Close()),
    EMPTY_FRAME,
    encode_frame(End(), channel=65535),
    encode_frame(SaslOutcome(code=0), kind=SASL_FRAME),
    encode_frame(Transfer(handle=1), channel=2, payload=b"payload" * 20),
]


def bodies(reader: ByteReader) -> list[Body]:
    """Kind, channel and body of every complete frame."""
    frames = []
    while (frame := reader.frame()) is not None:
        frames.append((frame.kind, frame.channel, bytes(frame.data[frame.start : frame.end])))
    return frames


EXPECTED: list[Body] = [
    (AMQP_FRAME, 0, bytes.fromhex("005318c0020140")),
    (AMQP_FRAME, 0, b""),
    (AMQP_FRAME, 65535, bytes.fromhex("005317c0020140")),
    (SASL_FRAME, 0, bytes.fromhex("005344c00402500040")),
    (AMQP_FRAME, 2, bytes.fromhex("005314c00d0b 5201 40404040 42 4040 424242") + b"payload" * 20),
]


def test_a_frame_has_these_bytes() -> None:
    """Size, data offset of two words, type, channel; then the body."""
    assert encode_frame(Close()).hex(" ", -4) == "0000000f 02000000 005318c0 020140"
    assert encode_frame(End(), channel=258).hex(" ", -4) == "0000000f 02000102 005317c0 020140"
    assert EMPTY_FRAME.hex(" ", -4) == "00000008 02000000"


def test_a_stream_split_at_any_byte_gives_the_same_frames() -> None:
    stream = b"".join(FRAMES)
    for split in range(len(stream) + 1):
        reader = ByteReader(512)
        reader.feed(stream[:split])
        before = bodies(reader)
        reader.feed(stream[split:])
        assert [*before, *bodies(reader)] == EXPECTED, f"split at byte {split}"
        assert reader.pending == 0, f"split at byte {split}"


def test_single_bytes_give_the_same_frames() -> None:
    reader, frames = ByteReader(512), []
    for byte in b"".join(FRAMES):
        reader.feed(bytes((byte,)))
        frames += bodies(reader)
    assert frames == EXPECTED


@given(st.lists(st.binary(max_size=300)), st.integers(0, 2**32))
def test_any_frames_in_any_pieces(payloads: list[bytes], seed: int) -> None:
    stream = b"".join(encode_frame(Transfer(handle=0), payload=payload) for payload in payloads)
    reader, random, frames, pos = ByteReader(512), Random(seed), [], 0
    while pos < len(stream):
        size = random.randint(1, 400)
        reader.feed(stream[pos : pos + size])
        frames += bodies(reader)
        pos += size
    head = len(encode_frame(Transfer(handle=0))) - 8
    assert [body[head:] for _, _, body in frames] == payloads
    assert reader.pending == 0


@given(st.integers(0, 2**32))
def test_a_split_frame_is_joined_without_the_bytes_after_it(seed: int) -> None:
    random, reader, frames = Random(seed), ByteReader(1 << 16), list[bytes]()
    sent = [encode_frame(Transfer(handle=0), payload=random.randbytes(900)) for _ in range(99)]
    stream, pos = b"".join(sent), 0
    while pos < len(stream):
        size = random.choice((1, 900, 2 * APART_MIN))
        reader.feed(stream[pos : pos + size])
        pos += size
        consumed = sum(map(len, frames))
        assert reader.pending == min(pos, len(stream)) - consumed
        if random.random() < 0.9:  # otherwise the next bytes arrive before these are consumed
            while frame := reader.frame():
                frames.append(frame.data[frame.start - 8 : frame.end])
            reader.release()
    while frame := reader.frame():
        frames.append(frame.data[frame.start - 8 : frame.end])
    assert frames == sent
    reader.feed(bytes(8))
    with pytest.raises(RemoteProtocolError, match=f"at byte {len(stream)} of the stream"):
        reader.frame()


def test_an_extended_header_is_skipped() -> None:
    reader = ByteReader(512)
    reader.feed(bytes.fromhex("00000010 03000000 eeeeeeee") + b"body")
    assert bodies(reader) == [(0, 0, b"body")]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("00000201 02000000", "frame of 513 bytes, the limit is 512"),
        ("ffffffff 02000000", "frame of 4294967295 bytes, the limit is 512"),
        ("00000000 02000000", "frame of 0 bytes, the header alone has 8"),
        ("00000007 02000000", "frame of 7 bytes, the header alone has 8"),
        ("00000010 00000000", "data offset of 0 words does not lie within the frame of 16 bytes"),
        ("00000010 01000000", "data offset of 1 words does not lie within the frame of 16 bytes"),
        ("00000010 05000000", "data offset of 5 words does not lie within the frame of 16 bytes"),
    ],
)
def test_an_invalid_frame_header_is_refused(head: str, why: str) -> None:
    """The header is refused before the body arrives."""
    reader = ByteReader(512)
    reader.feed(EMPTY_FRAME)
    assert bodies(reader) == [(0, 0, b"")]
    reader.feed(bytes.fromhex(head))
    with pytest.raises(RemoteProtocolError, match=f"at byte 8 of the stream: {why}") as caught:
        reader.frame()
    assert caught.value.condition == "amqp:connection:framing-error"


def test_a_frame_of_exactly_the_limit_is_read() -> None:
    reader = ByteReader(512)
    reader.feed(bytes.fromhex("00000200 02000000") + bytes(504))
    assert bodies(reader) == [(0, 0, bytes(504))]


def test_a_protocol_header_split_at_any_byte_is_read() -> None:
    for split in range(9):
        reader = ByteReader(512)
        reader.feed(AMQP_HEADER[:split])
        headers = [reader.header()]
        reader.feed(AMQP_HEADER[split:] + SASL_HEADER)
        headers += [reader.header() if headers == [None] else None, reader.header()]
        complete = [header for header in headers if header]
        assert complete == [AMQP_HEADER, SASL_HEADER], f"split at byte {split}"


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"\x16\x03\x01", b"AMQX", b"B", b"AM\x00"])
def test_an_invalid_protocol_header_is_refused_at_its_first_wrong_byte(start: bytes) -> None:
    """A peer of another protocol may send fewer than eight bytes."""
    reader = ByteReader(512)
    reader.feed(start)
    with pytest.raises(RemoteProtocolError, match="expected a protocol header 'AMQP"):
        reader.header()


def test_our_frame_must_fit_the_limit_of_the_peer() -> None:
    frame = encode_frame(Transfer(handle=1), payload=bytes(600))
    assert check_fits(frame, len(frame)) is frame
    with pytest.raises(LocalProtocolError, match="the limit of the peer is 512"):
        check_fits(frame, 512)
