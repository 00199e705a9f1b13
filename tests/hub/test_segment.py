"""The bytes of a segment: both ways, and what a walk finds in damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.annotations import build_frames
from pumphouse.hub.storage.index import SparseIndex, decode_index, encode_index
from pumphouse.hub.storage.segment_format import (
    FILE_HEAD_SIZE,
    GROUP_HEAD_SIZE,
    FileHead,
    Group,
    decode_file_head,
    decode_group,
    encode_file_head,
    encode_group,
    frame_lengths,
    is_intact,
    recover,
)
from tests.hub.events import batch_of

HEAD = FileHead(b"h" * 16, 3, 100, 5000, 1_700_000_000_000)


def test_the_head_of_a_file_both_ways() -> None:
    data = encode_file_head(HEAD)
    assert len(data) == FILE_HEAD_SIZE
    assert decode_file_head(data) == HEAD


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d[:50], "fewer than its header of 64"),
        (lambda d: b"X" + d[1:], "it is not a segment file"),
        (lambda d: d[:7] + b"\x09" + d[8:], "unknown format 9"),
        (lambda d: d[:20] + b"\xff" + d[21:], "checksum"),
    ],
)
def test_a_broken_head_says_what_is_wrong(change, why) -> None:  # type: ignore[no-untyped-def]
    found = decode_file_head(change(encode_file_head(HEAD)))
    assert isinstance(found, str)
    assert why in found


def group_bytes(sequence: int, bodies: list[bytes], offset: int = 5000, ms: int = 7) -> bytes:
    frames = build_frames(batch_of(bodies), sequence, offset, ms)
    return encode_group(bytes(frames.data), frames.starts, sequence, offset, ms)


def row_of_groups(*bodies: list[bytes]) -> list[bytes]:
    """Groups that follow one another as they would in a file."""
    sequence, offset, row = HEAD.sequence, HEAD.offset, list[bytes]()
    for group in bodies:
        row.append(group_bytes(sequence, group, offset))
        sequence += len(group)
        offset += len(row[-1]) - GROUP_HEAD_SIZE - 4 * len(group)
    return row


def test_a_group_both_ways() -> None:
    data = group_bytes(5, [b"a", b"bb", b"ccc"])
    group = decode_group(data, 0)
    assert group is not None
    assert (group.sequence, group.events, group.enqueued_ms, group.end) == (5, 3, 7, len(data))
    assert is_intact(data, group)
    lengths = frame_lengths(data, group)
    assert lengths.sum() == group.frame_bytes
    assert group.last_offset == group.offset + group.frame_bytes - lengths[-1]


def test_a_group_in_the_middle_of_a_chunk() -> None:
    data = group_bytes(5, [b"a"])
    assert decode_group(b"....." + data, 1005, base=1000) == Group(
        1005,
        *decode_group(data, 0)[1:],  # type: ignore[index]
    )


def file_of(*groups: bytes, zeros: int = 100) -> bytes:
    return encode_file_head(HEAD) + b"".join(groups) + bytes(zeros)


GROUPS = row_of_groups(*[[b"x" * 20, b"y" * 30]] * 3)
PLACES = [FILE_HEAD_SIZE + sum(map(len, GROUPS[:n])) for n in range(4)]


def test_a_whole_file_is_walked_to_its_end() -> None:
    found = recover(file_of(*GROUPS), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 102, 104]
    assert (found.damage, found.torn_bytes, found.end) == ([], 0, PLACES[3])


@pytest.mark.parametrize("cut", [1, 10, 47, 48, 60, len(GROUPS[2]) - 1])
def test_a_torn_tail_is_cut_and_counted(cut: int) -> None:
    found = recover(file_of(GROUPS[0], GROUPS[1], GROUPS[2][:-cut]), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 102]
    assert found.end == PLACES[2]
    assert found.torn_bytes > 0


@pytest.mark.parametrize("at", [0, 5, 9, 40, 44, 50, 70, len(GROUPS[1]) - 1])
def test_damage_in_the_middle_is_a_hole_and_what_follows_is_kept(at: int) -> None:
    broken = bytearray(GROUPS[1])
    broken[at] ^= 0x10
    found = recover(file_of(GROUPS[0], bytes(broken), GROUPS[2]), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 104]
    assert [(hole.position, hole.end) for hole in found.damage] == [(PLACES[1], PLACES[2])]


def test_a_group_that_counts_from_below_is_not_believed() -> None:
    """A stale copy of older bytes must not make the sequence run backwards."""
    found = recover(file_of(GROUPS[0], GROUPS[1], GROUPS[0]), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 102]


def test_zeros_in_the_middle_are_a_hole_like_any_other() -> None:
    found = recover(file_of(GROUPS[0], bytes(len(GROUPS[1])), GROUPS[2]), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 104]
    assert [(hole.position, hole.end) for hole in found.damage] == [(PLACES[1], PLACES[2])]


def test_a_group_in_the_body_of_an_event_is_no_group() -> None:
    """Someone may send a segment file as an event; if that event is damaged, it stays an event."""
    inner = group_bytes(150, [b"never sent"], 9000)
    row = row_of_groups([b"a"], [b"before" + inner + b"after"], [b"c"])
    broken = bytearray(row[1])
    broken[10] ^= 1
    found = recover(file_of(row[0], bytes(broken), row[2]), 100, 5000)
    assert [group.sequence for group in found.groups] == [100, 102]


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=6),
    st.data(),
)
def test_no_damage_loses_an_intact_group(bodies: list[list[bytes]], data: st.DataObject) -> None:
    pieces = row_of_groups(*bodies)
    whole = bytearray(file_of(*pieces))
    places = [FILE_HEAD_SIZE + sum(map(len, pieces[:n])) for n in range(len(pieces) + 1)]
    flips = data.draw(st.lists(st.integers(FILE_HEAD_SIZE, places[-1] - 1), max_size=3))
    for at in flips:
        whole[at] ^= data.draw(st.integers(1, 255))
    hit = {n for n in range(len(pieces)) for at in flips if places[n] <= at < places[n + 1]}
    found = recover(bytes(whole), 100, 5000)
    kept = {places.index(group.position) for group in found.groups}
    assert kept >= set(range(len(pieces))) - hit


def test_an_index_both_ways_and_refused_when_damaged() -> None:
    index = SparseIndex(100, 5000, FILE_HEAD_SIZE)
    for group in recover(file_of(*GROUPS), 100, 5000).groups:
        index.add(group)
    data = encode_index(index)
    again = decode_index(data)
    assert again is not None
    assert encode_index(again) == data
    assert again.at_sequence(103) == PLACES[0]  # one entry per 64 KiB
    for at in range(len(data)):
        assert decode_index(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
