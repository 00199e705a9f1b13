"""Frames of the official client, recorded by record_sdk_frames.py: decoded and encoded again."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pumphouse.amqp.composites import Composite, decode_performative, encode_performative
from pumphouse.amqp.frames import AMQP_HEADER, SASL_HEADER
from pumphouse.amqp.messages import BATCH_FORMAT, SINGLE_FORMAT, decode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SELECTOR_FILTER,
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.types import Described

RECORD = Path(__file__).parent / "recorded_sdk_frames.json"
FRAMES: list[dict[str, Any]] = json.loads(RECORD.read_text())
SPOKEN = [frame for frame in FRAMES if frame["name"] != "header"]

C = TypeVar("C", bound=Composite)


def read(frame: dict[str, Any]) -> tuple[Composite, bytes]:
    body = bytes.fromhex(frame["body"])
    performative, after = decode_performative(body, 0, len(body))
    return performative, body[after:]


def of(kind: type[C]) -> list[C]:
    return [performative for performative, _ in map(read, SPOKEN) if isinstance(performative, kind)]


@pytest.mark.parametrize("frame", SPOKEN, ids=lambda frame: frame["name"])
def test_a_recorded_frame_round_trips(frame: dict[str, Any]) -> None:
    performative, _ = read(frame)
    assert frame["name"] == performative.NAME
    again = encode_performative(performative)
    assert decode_performative(again, 0, len(again)) == (performative, len(again))
    # The client writes booleans in two bytes and may omit fields; we never write less.
    assert len(fields(performative)) == again[5 if again[3] == 0xC0 else 11]  # type: ignore[arg-type]


def test_all_performatives_of_a_client_are_recorded() -> None:
    names = "header sasl-init open begin attach flow transfer detach end close"
    assert {frame["name"] for frame in FRAMES} == {*names.split()}


def test_recorded_headers_and_login() -> None:
    headers = [bytes.fromhex(frame["body"]) for frame in FRAMES if frame["name"] == "header"]
    assert headers == [SASL_HEADER, AMQP_HEADER]
    assert of(SaslInit) == [
        SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="127.0.0.1")
    ]


def test_recorded_open_and_begin() -> None:
    assert {
        (performative.max_frame_size, performative.channel_max) for performative in of(Open)
    } == {(1 << 20, 65535)}
    (begin,) = of(Begin)
    assert (begin.incoming_window, begin.outgoing_window) == (65536, 65536)
    assert (begin.next_outgoing_id, begin.handle_max) == (0, 2**32 - 1)


def test_recorded_attaches() -> None:
    ends = set()
    for performative in of(Attach):
        terminus = performative.target if performative.role == SENDER else performative.source
        assert isinstance(terminus, Source | Target)
        ends.add((performative.role, str(terminus.address).rsplit("/", 1)[-1]))
    assert {(SENDER, "$cbs"), (RECEIVER, "$cbs"), (SENDER, "recorded")} <= ends
    assert {(SENDER, "$management"), (RECEIVER, "$management"), (RECEIVER, "0")} <= ends


def test_the_recorded_attach_of_a_reader() -> None:
    (performative,) = [
        a for a in of(Attach) if a.properties and "com.microsoft:epoch" in a.properties
    ]
    assert performative.role == RECEIVER
    assert performative.properties is not None
    assert performative.properties["com.microsoft:epoch"] == 3
    assert "com.microsoft:enable-receiver-runtime-metric" in performative.desired_capabilities
    selector = performative.source.filter[SELECTOR_FILTER]
    assert selector == Described(SELECTOR_FILTER, "amqp.annotation.x-opt-offset > '-1'")


def test_recorded_flows_have_a_link_and_its_credit() -> None:
    assert {performative.link_credit for performative in of(Flow)} == {0, 10, 10000}
    assert all(performative.handle is not None for performative in of(Flow))


def test_messages() -> None:
    """Messages to the hub; requests were recorded without their payload."""
    transfers = [
        (performative, rest)
        for performative, rest in map(read, SPOKEN)
        if isinstance(performative, Transfer)
    ]
    assert {performative.message_format for performative, _ in transfers} == {
        SINGLE_FORMAT,
        BATCH_FORMAT,
    }
    keyed = next(rest for _, rest in transfers if b"home-7" in rest)
    batch = decode_message(keyed)
    assert batch.annotations == {"x-opt-partition-key": b"home-7".decode()}
    events = [decode_message(event) for event in batch.data]
    assert [event.data for event in events] == [(b"event 0",), (b"event 1",), (b"event 2",)]
    assert [event.properties and event.properties.message_id for event in events] == [
        "id-0",
        "id-1",
        "id-2",
    ]
    assert events[2].application == {"number": 2, "float": 1.5, "text": "é", "flag": True}
    alone = next(
        rest for performative, rest in transfers if rest and performative.message_format == 0
    )
    assert decode_message(alone).data == (b"alone",)


def test_a_large_delivery_repeats_its_id_and_tag_in_each_frame() -> None:
    first = next(performative for performative in of(Transfer) if performative.more)
    assert first.delivery_id is not None
    assert first.delivery_tag
    assert first.settled is False


def test_the_recording_contains_no_secret() -> None:
    for frame in FRAMES:
        assert b"SharedAccess" not in bytes.fromhex(frame["body"])
