"""What the official client said, recorded by record_sdk_frames.py: read, and said again."""

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
    said, after = decode_performative(body, 0, len(body))
    return said, body[after:]


def of(kind: type[C]) -> list[C]:
    return [said for said, _ in map(read, SPOKEN) if isinstance(said, kind)]


@pytest.mark.parametrize("frame", SPOKEN, ids=lambda frame: frame["name"])
def test_it_is_understood_and_said_again_with_the_same_meaning(frame: dict[str, Any]) -> None:
    said, _ = read(frame)
    assert frame["name"] == said.NAME
    again = encode_performative(said)
    assert decode_performative(again, 0, len(again)) == (said, len(again))
    # The client writes booleans in two bytes and may leave fields out; we never write less.
    assert len(fields(said)) == again[5 if again[3] == 0xC0 else 11]  # type: ignore[arg-type]


def test_everything_that_a_client_says_was_recorded() -> None:
    names = "header sasl-init open begin attach flow transfer detach end close"
    assert {frame["name"] for frame in FRAMES} == {*names.split()}


def test_headers_and_login() -> None:
    headers = [bytes.fromhex(frame["body"]) for frame in FRAMES if frame["name"] == "header"]
    assert headers == [SASL_HEADER, AMQP_HEADER]
    assert of(SaslInit) == [
        SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="127.0.0.1")
    ]


def test_open_and_begin() -> None:
    assert {(said.max_frame_size, said.channel_max) for said in of(Open)} == {(1 << 20, 65535)}
    (begin,) = of(Begin)
    assert (begin.incoming_window, begin.outgoing_window) == (65536, 65536)
    assert (begin.next_outgoing_id, begin.handle_max) == (0, 2**32 - 1)


def test_attaches() -> None:
    ends = set()
    for said in of(Attach):
        terminus = said.target if said.role == SENDER else said.source
        assert isinstance(terminus, Source | Target)
        ends.add((said.role, str(terminus.address).rsplit("/", 1)[-1]))
    assert {(SENDER, "$cbs"), (RECEIVER, "$cbs"), (SENDER, "recorded")} <= ends
    assert {(SENDER, "$management"), (RECEIVER, "$management"), (RECEIVER, "0")} <= ends


def test_the_attach_of_a_reader() -> None:
    (said,) = [a for a in of(Attach) if a.properties and "com.microsoft:epoch" in a.properties]
    assert said.role == RECEIVER
    assert said.properties is not None
    assert said.properties["com.microsoft:epoch"] == 3
    assert "com.microsoft:enable-receiver-runtime-metric" in said.desired_capabilities
    selector = said.source.filter[SELECTOR_FILTER]
    assert selector == Described(SELECTOR_FILTER, "amqp.annotation.x-opt-offset > '-1'")


def test_flows_name_a_link_and_its_credit() -> None:
    assert {said.link_credit for said in of(Flow)} == {0, 10, 10000}
    assert all(said.handle is not None for said in of(Flow))


def test_messages() -> None:
    """Those to the hub; requests were recorded without their payload, for they hold tokens."""
    transfers = [(said, rest) for said, rest in map(read, SPOKEN) if isinstance(said, Transfer)]
    assert {said.message_format for said, _ in transfers} == {SINGLE_FORMAT, BATCH_FORMAT}
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
    alone = next(rest for said, rest in transfers if rest and said.message_format == 0)
    assert decode_message(alone).data == (b"alone",)


def test_a_large_delivery_repeats_its_id_and_tag_in_each_frame() -> None:
    first = next(said for said in of(Transfer) if said.more)
    assert first.delivery_id is not None
    assert first.delivery_tag
    assert first.settled is False


def test_no_secret_was_recorded() -> None:
    for frame in FRAMES:
        assert b"SharedAccess" not in bytes.fromhex(frame["body"])
