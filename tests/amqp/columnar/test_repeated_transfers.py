"""Runs of deliveries: the same payloads and counters as single deliveries."""

from __future__ import annotations

from itertools import chain
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp import credit
from pumphouse.amqp.columnar.repeated_transfers import (
    TransferTemplates,
    make_template,
    take_numbered,
    take_run,
)
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.events import Delivered, Detached, RunDelivered, RunReceived
from pumphouse.amqp.frames import ByteReader, Frame, encode_frame
from pumphouse.amqp.links import ReceiverLink, SenderLink
from pumphouse.amqp.performatives import Open, Transfer
from tests.amqp.connection_pair import Pair, split_by

# Deliveries: link, size, settled or not, tag.
SENDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, 1, 50, 600, 2000]),
        st.booleans(),
        st.sampled_from([b"\0", b"tag", b""]),
    ),
    max_size=60,
)


def received(sends: list[tuple[int, int, bool, bytes]], seed: int, runs: str) -> tuple[Any, ...]:
    """The payloads that a client receives, and its counters."""
    pair = Pair(
        client_open=Open(container_id="c", max_frame_size=1000),
        limits=Limits(),
        chunks=split_by(Random(seed)),
    )
    session = pair.begun()
    near: list[ReceiverLink] = []
    far: list[SenderLink] = []
    for name in ("a", "b", "c"):
        link, other = pair.receiver(session, name)
        link.grant(1000)
        if runs == "settled":
            link.take_runs()
        elif runs == "numbered":
            link.take_numbered_runs()
        near.append(link)
        far.append(other)
    pair.talk()
    # Ids below 256 have a shorter form; real ids soon exceed it.
    far[0].session.next_delivery_id = 200
    for number, (which, size, settled, tag) in enumerate(sends):
        far[which].send(bytes([number]) * size, settled=settled, tag=tag)
        if number % 7 == 0:
            pair.talk()
    pair.talk()
    sent_frames: list[tuple[str, bytes, bool]] = []
    ids: list[int] = []
    single = chain.from_iterable(
        e.deliveries() if isinstance(e, RunReceived) else (e,) for e in pair.client.events
    )
    for event in single:
        if isinstance(event, Delivered):
            ids.append(event.delivery_id)
            sent_frames.append((event.link.name, event.payload, event.settled))
        elif isinstance(event, RunDelivered):
            sent_frames += [(event.link.name, payload, True) for payload in event.payloads]
    assert runs == "settled" or ids == [credit.advance(200, n) for n in range(len(ids))]
    counts = [(link.credit, link.delivery_count) for link in near]
    return sent_frames, counts, session.incoming_window, session.next_incoming_id, pair.client.error


@given(SENDS, st.integers(0, 1000))
def test_runs_deliver_the_same_payloads_as_single_deliveries(
    sends: list[tuple[int, int, bool, bytes]], seed: int
) -> None:
    single = received(sends, seed, runs="none")
    assert received(sends, seed, runs="settled") == single
    assert received(sends, seed, runs="numbered") == single


def one_link(count: int) -> tuple[Pair, ReceiverLink, SenderLink]:
    pair = Pair()
    near, far = pair.receiver(pair.begun())
    near.grant(count)
    near.take_runs()
    pair.talk()
    far.session.next_delivery_id = 1000
    return pair, near, far


def test_most_deliveries_arrive_in_runs() -> None:
    pair, near, far = one_link(500)
    for number in range(500):
        far.send(b"%d" % number)
    pair.talk()
    runs = pair.client.of(RunDelivered)
    # Many payloads of one size are a run of their own, up to those with another number of digits.
    assert [len(run.payloads) for run in runs] == [10, 89, 400]
    payloads = [payload for run in runs for payload in run.payloads]
    assert payloads == [b"%d" % number for number in range(1, 500)]
    assert (near.credit, near.delivery_count) == (0, 500)


def test_a_link_without_take_runs_gets_single_deliveries() -> None:
    pair, near, far = one_link(10)
    near.takes_runs = False
    for _ in range(10):
        far.send(b"x")
    pair.talk()
    assert len(pair.client.of(Delivered)) == 10
    assert not pair.client.of(RunDelivered)


def test_deliveries_after_our_detach_are_dropped() -> None:
    pair, near, far = one_link(100)
    for _ in range(5):
        far.send(b"x")
    pair.talk()
    sent_frames = len(pair.client.events)
    far.send(b"late")
    near.detach()
    pair.talk()
    assert not [
        e for e in pair.client.events[sent_frames:] if isinstance(e, Delivered | RunDelivered)
    ]
    assert pair.client.of(Detached)
    assert pair.client.error is None


def test_a_new_link_with_a_reused_handle_gets_its_own_template() -> None:
    pair, near, far = one_link(100)
    session = near.session
    for _ in range(5):
        far.send(b"x")
    pair.talk()
    near.detach()
    pair.talk()
    session.next_handle = 0
    again, other = pair.receiver(session, "again")
    again.grant(10)
    pair.talk()
    before = len(pair.client.of(RunDelivered))
    for _ in range(3):
        other.send(b"y")
    pair.talk()
    assert len(pair.client.of(RunDelivered)) == before, "it did not ask for runs"
    assert [event.link for event in pair.client.of(Delivered)[-3:]] == [again] * 3


def frame(payload: bytes = b"payload", **fields: Any) -> bytes:
    transfer = Transfer(
        **{
            "handle": 3,
            "delivery_id": 70_000,
            "delivery_tag": b"t",
            "message_format": 0,
            "settled": True,
            **fields,
        }
    )
    return encode_frame(transfer, 5, payload)


def decoded(data: bytes) -> tuple[Frame, Transfer, int]:
    reader = ByteReader(1 << 16)
    reader.feed(data)
    frame = reader.frame()
    assert frame is not None
    performative, after = decode_performative(frame.data, frame.start, frame.end)
    assert isinstance(performative, Transfer)
    return frame, performative, after


def learned(data: bytes) -> Any:
    return make_template(*decoded(data))


@pytest.mark.parametrize(
    "fields",
    [
        {"more": True},
        {"aborted": True},
        {"delivery_tag": None},
        {"delivery_id": None},
    ],
    ids=str,
)
def test_an_unusual_transfer_makes_no_template(fields: dict[str, Any]) -> None:
    assert learned(frame(**fields)) is None


def test_templates_are_of_settled_deliveries_or_of_single_messages() -> None:
    for fields, settled, numbered in (
        ({}, True, True),
        ({"settled": False}, False, True),
        ({"settled": None}, False, True),
        ({"message_format": 0x80013700}, True, False),
    ):
        data = frame(**fields)
        for templates, usable in (
            (TransferTemplates(), settled),
            (TransferTemplates(numbered=True), numbered),
        ):
            templates.learn(*decoded(data))
            assert (templates.find(data, 0) is not None) == usable, fields


def test_a_numbered_run_has_consecutive_ids() -> None:
    frames = [frame(delivery_id=number, settled=False) for number in (7, 8, 9, 11, 12)]
    template, data = learned(frames[0]), b"".join(frames)
    size = len(frames[0])
    assert take_numbered(data, 0, template, 1 << 16, 128) == (7, [b"payload"] * 3, 3 * size)
    assert take_numbered(data, 0, template, 1 << 16, 2) == (7, [b"payload"] * 2, 2 * size)
    assert take_numbered(data, 3 * size, template, 1 << 16, 128)[0] == 11
    assert take_numbered(data, 0, template, 1 << 16, 0).payloads == []
    # The last id and the first one are not consecutive numbers.
    wrapped = frame(delivery_id=0xFFFFFFFF) + frame(delivery_id=0)
    assert take_numbered(wrapped, 0, learned(wrapped), 1 << 16, 128).payloads == [b"payload"]


def test_numbered_runs_stay_within_the_credit() -> None:
    pair = Pair()
    near, far = pair.receiver(pair.begun())
    near.grant(20)
    near.take_numbered_runs()
    pair.talk()
    far.session.next_delivery_id = 1000
    for _ in range(30):
        far.send(b"x", settled=False)
    pair.talk()
    runs = pair.client.of(RunReceived)
    assert sum(len(run.payloads) for run in runs) <= 20
    assert (near.credit, near.overrun, near.delivery_count) == (0, 10, 30)


def test_a_run_ends_at_the_first_different_transfer() -> None:
    usual = frame()
    like = learned(usual)
    assert (like.channel, like.handle) == (5, 3)
    others = [
        frame(handle=4), frame(settled=False), frame(more=True), frame(message_format=1),
        frame(delivery_tag=b"tt"), usual[:-1], usual[:20], b"",
        b"\xff" + usual[1:],  # above the frame limit
        b"\x00\x00\x00\x09" + usual[4:],  # shorter than its content
    ]  # fmt: skip
    for other in others:
        data = usual * 3 + other
        assert take_run(data, 0, like, 1 << 16) == ([b"payload"] * 3, 3 * len(usual))
    varied = frame(delivery_id=80_000, delivery_tag=b"u")
    assert take_run(usual + varied, 0, like, 1 << 16)[0] == [b"payload"] * 2
