"""The fuzz targets: functions that must return for any bytes.

A target catches the errors that invalid bytes may cause, and asserts what must hold otherwise. Any
other exception is a bug. `make fuzz` runs the targets with atheris, test_mutations.py with random
mutations of the corpus, so that the tests do not need atheris.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from pumphouse.amqp.codec import decode, encode, skip
from pumphouse.amqp.frames import ByteReader
from pumphouse.amqp.messages import (
    BATCH_FORMAT,
    SINGLE_FORMAT,
    decode_message,
    encode_message,
    scan,
)
from pumphouse.errors import AmqpError, AuthError, LocalProtocolError, MalformedBytes
from pumphouse.hub.access.auth import AccessRule, verify_sas
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.filters import parse_selector
from pumphouse.hub.frames.building import build_frames
from pumphouse.hub.routing import parse_address
from tests.fuzz.offline_connection import OfflineConnection

Target = Callable[[bytes], None]

RULES = [AccessRule("rule", "key"), AccessRule("hub rule", "key", hub="eh")]


def fuzz_decode(data: bytes) -> None:
    """Any bytes are a value or malformed; a value is encoded and decoded to the same bytes."""
    try:
        value, end = decode(data)
    except MalformedBytes:
        return
    assert 0 < end <= len(data)
    assert skip(data, 0) == end
    written = encode(value)
    decoded, after = decode(written)
    assert after == len(written)
    assert encode(decoded) == written  # compared as bytes: NaN is not equal to itself


def fuzz_message(data: bytes) -> None:
    """Any bytes are a message or malformed; the sections of `scan` cover all of them."""
    try:
        sections = scan(data, 0, len(data))
        assert b"".join(data[start:end] for _, start, _, end in sections) == data
        message = decode_message(data)
    except MalformedBytes:
        return
    try:
        written = encode_message(message)
    except LocalProtocolError:
        return  # nested one level deeper than a section may be when it is encoded
    assert encode_message(decode_message(written)) == written


def fuzz_payload(data: bytes) -> None:
    """Any payload is refused, or becomes events that a reader can decode."""
    message_format = BATCH_FORMAT if data[:1] < b"\x80" else SINGLE_FORMAT
    try:
        batch = parse_payload(data[1:], message_format)
    except (MalformedBytes, AmqpError):
        return
    frames = build_frames(batch, 5, 1000, 1_700_000_000_000, "publisher")
    reader = ByteReader(1 << 30)
    reader.feed(bytes(frames.data))
    count = 0
    while (frame := reader.frame()) is not None:
        _, _, value, end = next(
            section
            for section in scan(frame.data, frame.start + 27, frame.end)
            if section[0] == 0x72
        )
        annotations, _ = decode(
            frame.data, value, end
        )  # the hub's and the producer's in one valid map
        assert annotations["x-opt-sequence-number"] == 5 + count
        assert int(annotations["x-opt-offset"]) == frames.starts[count]
        decode_message(frame.data, frame.start + 27, frame.end)
        count += 1
    assert count == batch.event_count
    assert reader.pending == 0


def fuzz_texts(data: bytes) -> None:
    """Selectors, addresses and tokens: text that a client chooses."""
    text = data.decode("utf-8", "replace")
    for parse in (parse_selector, parse_address):
        with suppress(AmqpError):
            parse(text)
    for token in (text, f"SharedAccessSignature {text}", f"SharedAccessSignature sr=eh&{text}"):
        with suppress(AuthError):
            verify_sas(token, "sb://host/eh", RULES, now=1_700_000_000.0)


def fuzz_login(data: bytes) -> None:
    """A connection from its first byte on."""
    OfflineConnection().play(b"", data)


def fuzz_session(data: bytes) -> None:
    """A connection with links to every kind of node."""
    OfflineConnection().play(OfflineConnection.ATTACHED, data)


TARGETS: Mapping[str, Target] = {
    "decode": fuzz_decode,
    "message": fuzz_message,
    "payload": fuzz_payload,
    "texts": fuzz_texts,
    "login": fuzz_login,
    "session": fuzz_session,
}
