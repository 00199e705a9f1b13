"""The segment format: encoded and decoded, and the recovery of damaged files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.hub.storage.segment_format import (
    FILE_HEAD_SIZE,
    ZEROS,
    Group,
    content_end,
    decode_file_head,
    decode_group,
    encode_file_head,
    frame_lengths,
    group_content,
    is_intact,
    recover,
)
from tests.hub.storage.segments import HEAD, file_of, group_bytes, group_series


def test_a_file_head_is_encoded_and_decoded() -> None:
    data = encode_file_head(HEAD)
    assert len(data) == FILE_HEAD_SIZE
    assert decode_file_head(data) == HEAD


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d[:50], "fewer than its header of 64"),
        (lambda d: b"X" + d[1:], "it is not a segment file"),
        (lambda d: d[:7] + b"\x09" + d[8:], "unknown format 9"),
        (lambda d: d[:20] + b"\xff" + d[21:], "checksum"),
    ],
)
def test_an_invalid_file_head_is_described(change, expected) -> None:  # type: ignore[no-untyped-def]
    problem = decode_file_head(change(encode_file_head(HEAD)))
    assert isinstance(problem, str)
    assert expected in problem


def test_a_group_is_encoded_and_decoded() -> None:
    data = group_bytes(5, [b"a", b"bb", b"ccc"])
    group = decode_group(data, 0)
    assert group is not None
    assert (group.sequence, group.events, group.enqueued_ms, group.end) == (5, 3, 7, len(data))
    assert is_intact(data, group)
    lengths = frame_lengths(data, group)
    assert lengths.sum() == group.frame_bytes
    assert group.last_offset == group.offset + group.frame_bytes - lengths[-1]


def test_the_pieces_of_a_group_contain_its_frames_without_a_copy() -> None:
    frames = memoryview(bytearray(b"abbccc"))
    content = group_content(frames, [10, 11, 13], 5, 1_000, 7)
    data = b"".join(content.pieces())
    group = decode_group(data, 0)
    assert group is not None
    assert group._replace(crc=0) == content.group
    assert is_intact(data, group)
    assert content.pieces()[2] is frames


def test_a_group_in_the_middle_of_a_chunk() -> None:
    data = group_bytes(5, [b"a"])
    assert decode_group(b"....." + data, 1005, base=1000) == Group(
        1005,
        *decode_group(data, 0)[1:],  # type: ignore[index]
    )


GROUPS = group_series(*[[b"x" * 20, b"y" * 30]] * 3)
POSITIONS = [FILE_HEAD_SIZE + sum(map(len, GROUPS[:n])) for n in range(4)]


def test_recovery_finds_every_group_of_an_intact_file() -> None:
    recovery = recover(file_of(*GROUPS), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 102, 104]
    assert (recovery.damage, recovery.torn_bytes, recovery.end) == ([], 0, POSITIONS[3])


@pytest.mark.parametrize("cut", [1, 10, 47, 48, 60, len(GROUPS[2]) - 1])
def test_a_torn_tail_is_counted(cut: int) -> None:
    recovery = recover(file_of(GROUPS[0], GROUPS[1], GROUPS[2][:-cut]), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 102]
    assert recovery.end == POSITIONS[2]
    assert recovery.torn_bytes > 0


@pytest.mark.parametrize("zeros", [0, 1, len(ZEROS) - 1, len(ZEROS), 2 * len(ZEROS) + 1])
@pytest.mark.parametrize("content", [b"", b"a", b"\0a", b"a\0b" * 30_000])
def test_trailing_zeros_are_no_content(content: bytes, zeros: int) -> None:
    assert content_end(content + bytes(zeros)) == len(content)


@pytest.mark.parametrize("zeros", [0, 3, 2 * len(ZEROS)])
def test_an_event_that_ends_with_zeros_is_recovered(zeros: int) -> None:
    groups = group_series([b"x", bytes(len(ZEROS) + 5)])
    recovery = recover(file_of(*groups, zeros=zeros), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100]
    assert (recovery.end, recovery.torn_bytes) == (FILE_HEAD_SIZE + len(groups[0]), 0)


@pytest.mark.parametrize("at", [0, 5, 9, 40, 44, 50, 70, len(GROUPS[1]) - 1])
def test_damage_in_the_middle_keeps_the_groups_after_it(at: int) -> None:
    broken = bytearray(GROUPS[1])
    broken[at] ^= 0x10
    recovery = recover(file_of(GROUPS[0], bytes(broken), GROUPS[2]), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 104]
    assert [(lost.position, lost.end) for lost in recovery.damage] == [(POSITIONS[1], POSITIONS[2])]


def test_a_group_with_older_numbers_is_ignored() -> None:
    """A stale copy of older bytes must not make the sequence numbers fall."""
    recovery = recover(file_of(GROUPS[0], GROUPS[1], GROUPS[0]), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 102]


def test_zeros_in_the_middle_are_damage() -> None:
    recovery = recover(file_of(GROUPS[0], bytes(len(GROUPS[1])), GROUPS[2]), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 104]
    assert [(lost.position, lost.end) for lost in recovery.damage] == [(POSITIONS[1], POSITIONS[2])]


def test_a_group_in_the_body_of_an_event_is_ignored() -> None:
    """An event may contain a segment file; if the event is damaged, its body is not recovered."""
    inner = group_bytes(150, [b"never sent"], 9000)
    groups = group_series([b"a"], [b"before" + inner + b"after"], [b"c"])
    broken = bytearray(groups[1])
    broken[10] ^= 1
    recovery = recover(file_of(groups[0], bytes(broken), groups[2]), 100, 5000)
    assert [group.sequence for group in recovery.groups] == [100, 102]


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=6),
    st.data(),
)
def test_no_damage_loses_an_intact_group(bodies: list[list[bytes]], data: st.DataObject) -> None:
    pieces = group_series(*bodies)
    whole = bytearray(file_of(*pieces))
    positions = [FILE_HEAD_SIZE + sum(map(len, pieces[:n])) for n in range(len(pieces) + 1)]
    flips = data.draw(st.lists(st.integers(FILE_HEAD_SIZE, positions[-1] - 1), max_size=3))
    for at in flips:
        whole[at] ^= data.draw(st.integers(1, 255))
    hit = {n for n in range(len(pieces)) for at in flips if positions[n] <= at < positions[n + 1]}
    recovery = recover(bytes(whole), 100, 5000)
    kept = {positions.index(group.position) for group in recovery.groups}
    assert kept >= set(range(len(pieces))) - hit
