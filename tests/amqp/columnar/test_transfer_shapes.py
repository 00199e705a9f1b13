"""Transfers that are decoded by a shape are those that the decoder returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.columnar.transfer_shapes import LEARN_EVERY, SHAPES_MAX, TransferShapes
from pumphouse.amqp.composites import decode_performative, encode_performative
from pumphouse.amqp.performatives import Accepted, Transfer
from pumphouse.errors import MalformedBytes

USUAL = Transfer(
    handle=3, delivery_id=70_000, delivery_tag=b"tag!", message_format=0x80013700, settled=False
)


def learn(shapes: TransferShapes, transfer: Transfer) -> None:
    data = encode_performative(transfer)
    decoded, after = decode_performative(data, 0, len(data))
    assert isinstance(decoded, Transfer)
    shapes.learn(data, 0, after, decoded)


def learned(*transfers: Transfer) -> TransferShapes:
    shapes = TransferShapes()
    for transfer in transfers:
        learn(shapes, transfer)
    return shapes


TRANSFERS = st.builds(
    Transfer,
    handle=st.sampled_from([0, 3, 300]),
    delivery_id=st.sampled_from([None, 0, 7, 255, 256, 70_000, 2**32 - 1]),
    delivery_tag=st.sampled_from([None, b"", b"t", b"four", b"five!", bytes(300)]),
    message_format=st.sampled_from([None, 0, 0x80013700]),
    settled=st.sampled_from([None, True, False]),
    more=st.booleans(),
    rcv_settle_mode=st.sampled_from([None, 0]),
    state=st.sampled_from([None, Accepted()]),
    aborted=st.booleans(),
)


@given(st.lists(TRANSFERS, max_size=30), st.binary(max_size=3))
def test_a_shape_gives_the_transfer_that_the_decoder_gives(
    transfers: list[Transfer], payload: bytes
) -> None:
    shapes = TransferShapes()
    for transfer in transfers:
        body = encode_performative(transfer)
        data, end = b"frame" + body + payload, 5 + len(body) + len(payload)
        decoded, after = decode_performative(data, 5, end)
        assert isinstance(decoded, Transfer)
        assert shapes.find(data, 5, end) in (None, (decoded, after))
        shapes.learn(data, 5, after, decoded)


@pytest.mark.parametrize("changes", [{}, {"delivery_id": 80_000}, {"delivery_tag": b"gat?"}])
def test_the_next_delivery_has_the_shape_of_the_last(changes: dict[str, Any]) -> None:
    following = replace(USUAL, **changes)
    data = encode_performative(following)
    assert learned(USUAL).find(data + b"payload", 0, len(data) + 7) == (following, len(data))


@given(st.integers(0, 100), st.integers(0, 255))
def test_any_changed_byte_gives_the_same_transfer_or_no_shape(position: int, value: int) -> None:
    data = bytearray(encode_performative(USUAL))
    data[position % len(data)] = value
    found = learned(USUAL).find(bytes(data), 0, len(data))
    if found is not None:
        assert found == decode_performative(bytes(data), 0, len(data))


@pytest.mark.parametrize("end", range(40))
def test_a_transfer_that_is_cut_off_has_no_shape(end: int) -> None:
    data = encode_performative(USUAL)
    if end < len(data):
        assert learned(USUAL).find(data[:end], 0, end) is None
        with pytest.raises(MalformedBytes):
            decode_performative(data[:end], 0, end)


def test_the_number_of_shapes_is_limited() -> None:
    handles = [replace(USUAL, handle=handle) for handle in range(2 * SHAPES_MAX)]
    shapes = learned(*handles)

    def has(transfer: Transfer) -> bool:
        data = encode_performative(transfer)
        return shapes.find(data, 0, len(data)) is not None

    assert [has(transfer) for transfer in handles] == [True] * SHAPES_MAX + [False] * SHAPES_MAX
    for _ in range(LEARN_EVERY):
        learn(shapes, handles[-1])
    assert has(handles[-1])
    assert sum(map(has, handles)) == SHAPES_MAX
