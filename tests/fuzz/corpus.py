"""Valid bytes of every kind, for a fuzzer to mutate."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pumphouse.amqp.codec import encode
from pumphouse.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.messages import (
    DELIVERY_ANNOTATIONS,
    Header,
    Message,
    Properties,
    encode_batch,
    encode_message,
    encode_section,
)
from pumphouse.amqp.performatives import (
    RECEIVER,
    SELECTOR_FILTER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Described, Symbol, Timestamp, UInt, ULong, array_of
from pumphouse.client.sas import sign
from tests.fuzz.offline_connection import BEGUN, HUB, KEY, LOGIN, RULE, attached

RECORDED = Path(__file__).parents[1] / "amqp" / "recorded_sdk_frames.json"

VALUES: list[object] = [
    None,
    [True, False, 0, -1, 2**40, 1.5, "text", b"bytes", Symbol("symbol"), UInt(7), ULong(300)],
    {Symbol("key"): [{"deep": [None]}], "list": [], ULong(1): Timestamp(5)},
    array_of(Symbol, ["a", "bc"]),
    array_of(str, ["é" * 200]),
    Described(ULong(0x24), []),
    uuid.UUID(int=5),
    "x" * 300,
]
MESSAGES = [
    encode_message(Message(data=(b"body",))),
    encode_message(
        Message(
            header=Header(durable=True),
            annotations={Symbol("x-opt-partition-key"): "key", Symbol("x-user"): [1]},
            properties=Properties(message_id="id", correlation_id=uuid.UUID(int=1)),
            application={"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB},
            data=(b"one", b"two" * 100),
            footer={Symbol("f"): 1},
        )
    ),
    encode_message(Message(sequence=([1], [2, [3]]))),
    encode_message(Message(value={"a": 1}))
    + encode_section(DELIVERY_ANNOTATIONS, {Symbol("d"): 1}),
]
BATCHES = [
    encode_batch(MESSAGES[:1] * 5),
    encode_batch(MESSAGES, {Symbol("x-opt-partition-key"): "outer"}),
    b"",
]
TOKEN = sign(f"sb://host/{HUB}", RULE, KEY, 2_000_000_000)
TEXTS = [
    "amqp.annotation.x-opt-offset > '-1'",
    "amqp.annotation.x-opt-offset > '@latest'",
    "amqp.annotation.x-opt-sequence-number >= '12'",
    f"amqps://host:5671/{HUB}/ConsumerGroups/$Default/Partitions/0",
    f"{HUB}/Publishers/p",
    f"{HUB}/$management",
    TOKEN,
    TOKEN.removeprefix("SharedAccessSignature "),
]
PUT_TOKEN = Message(
    application={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": HUB},
    properties=Properties(message_id=uuid.UUID(int=3)),
    value=TOKEN,
)
FLOW = Flow(next_incoming_id=0, incoming_window=5, next_outgoing_id=0, outgoing_window=5)


def transfers() -> list[bytes]:
    deliveries = [
        (Transfer(handle=0, delivery_id=0), MESSAGES[1]),
        (Transfer(handle=0, delivery_id=0, message_format=0x80013700), BATCHES[1]),
        (Transfer(handle=2, delivery_id=0), encode_message(PUT_TOKEN)),
        (Transfer(handle=4, delivery_id=0, settled=True), MESSAGES[1]),
        (Transfer(handle=0, delivery_id=0, more=True), MESSAGES[1][:10]),
        (Transfer(handle=0, delivery_id=0, aborted=True), b""),
        (Transfer(handle=0, state=Accepted()), MESSAGES[1][10:]),
    ]
    return [encode_frame(transfer, payload=payload) for transfer, payload in deliveries]


def frames() -> list[bytes]:
    source = Source(
        address=f"{HUB}/ConsumerGroups/$Default/Partitions/1",
        filter={SELECTOR_FILTER: Described(SELECTOR_FILTER, TEXTS[0])},
    )
    reader = Attach(
        name="more",
        handle=9,
        role=RECEIVER,
        source=source,
        target=Target(address="t"),
        properties={Symbol("com.microsoft:epoch"): 3},
        desired_capabilities=("com.microsoft:enable-receiver-runtime-metric",),
    )
    performatives = [
        reader,
        Detach(handle=1, closed=True),
        replace(FLOW, handle=1, link_credit=5, drain=True, echo=True),
        FLOW,
        Disposition(role=RECEIVER, first=0, last=5, settled=True, state=Rejected()),
        End(),
        Close(),
    ]
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    return [*map(encode_frame, performatives), encode_frame(begin, channel=3), EMPTY_FRAME]


def recorded() -> bytes:
    """All recorded frames of the official client, as one stream."""
    stream = b""
    for frame in json.loads(RECORDED.read_text()):
        body = bytes.fromhex(frame["body"])
        if frame["name"] == "header":
            stream += body
        else:
            head = (8 + len(body)).to_bytes(4, "big") + bytes((2, frame["kind"]))
            stream += head + frame["channel"].to_bytes(2, "big") + body
    return stream


def corpus() -> Mapping[str, list[bytes]]:
    """The valid inputs of each target."""
    parts = [*transfers(), *frames()]
    return {
        "decode": [encode(value) for value in VALUES],
        "message": MESSAGES,
        "payload": [b"\x00" + batch for batch in BATCHES]
        + [b"\xff" + message for message in MESSAGES],
        "texts": [text.encode() for text in TEXTS],
        "login": [
            LOGIN,
            BEGUN,
            BEGUN + attached(0, SENDER, HUB) + attached(1, RECEIVER, "$cbs"),
            recorded(),
            AMQP_HEADER + SASL_HEADER,
        ],
        "session": [*parts, b"".join(parts[:5]), b"".join(parts)],
    }
