"""The sparse index of a segment: encoded, decoded, and refused when damaged."""

from __future__ import annotations

from pumphouse.hub.storage.index import SparseIndex, decode_index, encode_index
from pumphouse.hub.storage.segment_format import FILE_HEAD_SIZE, recover
from tests.hub.storage.segments import file_of, group_series

GROUPS = group_series(*[[b"x" * 20, b"y" * 30]] * 3)


def test_an_index_is_encoded_and_decoded_and_refused_when_damaged() -> None:
    index = SparseIndex(100, 5000, FILE_HEAD_SIZE)
    for group in recover(file_of(*GROUPS), 100, 5000).groups:
        index.add(group)
    data = encode_index(index)
    decoded = decode_index(data)
    assert decoded is not None
    assert encode_index(decoded) == data
    assert decoded.at_sequence(103) == FILE_HEAD_SIZE  # one entry per 64 KiB
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_index(damaged) is None, f"byte {at}"
