"""Builds the bytes of segment files."""

from __future__ import annotations

from pumphouse.hub.frames.building import build_frames
from pumphouse.hub.storage.segment_format import (
    GROUP_HEAD_SIZE,
    FileHead,
    encode_file_head,
    encode_group,
)
from tests.hub.events import batch_of

HEAD = FileHead(b"h" * 16, 3, 100, 5000, 1_700_000_000_000)


def group_bytes(sequence: int, bodies: list[bytes], offset: int = 5000, ms: int = 7) -> bytes:
    frames = build_frames(batch_of(bodies), sequence, offset, ms)
    return encode_group(bytes(frames.data), frames.starts, sequence, offset, ms)


def group_series(*bodies: list[bytes]) -> list[bytes]:
    """Groups that follow one another in a file."""
    sequence, offset, groups = HEAD.sequence, HEAD.offset, list[bytes]()
    for group in bodies:
        groups.append(group_bytes(sequence, group, offset))
        sequence += len(group)
        offset += len(groups[-1]) - GROUP_HEAD_SIZE - 4 * len(group)
    return groups


def file_of(*groups: bytes, zeros: int = 100) -> bytes:
    return encode_file_head(HEAD) + b"".join(groups) + bytes(zeros)
