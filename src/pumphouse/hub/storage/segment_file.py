"""One segment file of a partition: written by the writer's thread, read by the event loop.

Both use the page cache, so reading the end of a partition needs no access to the disk itself.
A segment consists of groups: one group holds the events of one append (see segment_format.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pumphouse.hub.storage import segment_format
from pumphouse.hub.storage.durable_files import make_directory, sync_directory, write_atomically
from pumphouse.hub.storage.index import SparseIndex, decode_index, encode_index
from pumphouse.hub.storage.segment_format import DamagedRange, FileHead, Group, Recovery

PARTITION_LEVELS = 3  # hubs/ID/N, below the data directory

Verify = Callable[[], None]


class SegmentFile:
    """One segment: its file, its header and its index."""

    def __init__(
        self, path: Path, head: FileHead, index: SparseIndex, allocated: int, scanned: bool
    ) -> None:
        self.path = path
        self.head = head
        self.index = index
        self.allocated = allocated
        self.staged_end = index.end  # where the next group goes; above index.end while writing
        self.damage: list[DamagedRange] = []
        # Whether all groups were read or written by this process. If not, `damage` is unknown.
        self.scanned = scanned
        self.full = not scanned  # takes no more groups; sealed after the staged ones are written
        self.new = False  # the file does not exist yet
        self.has_head = True  # whether the file starts with a valid header
        self._write_fd = -1
        self._read_fd = -1

    def open_for_writing(self, verify: Verify) -> int:
        """On the writer's thread: the file, created and allocated if new.

        `verify` raises an OSError if the data directory is not at its path any more.
        """
        if self._write_fd < 0:
            verify()
            if self.new:
                self.make_partition_directory()
            fd = os.open(self.path, os.O_RDWR | (os.O_CREAT if self.new else 0), 0o600)
            try:
                verify()  # again: the data directory may have been moved since the first time
                self.prepare(fd)
            except OSError:
                os.close(fd)
                if self.new:
                    self.path.unlink(missing_ok=True)
                raise
            self._write_fd, self.new = fd, False
        return self._write_fd

    def make_partition_directory(self) -> None:
        """Create hubs/ID/N for the first events of a partition.

        Otherwise, and above hubs/, nothing is created: a missing directory was moved or deleted.
        """
        if self.head.sequence == 0:
            make_directory(self.path.parent, PARTITION_LEVELS)

    def prepare(self, fd: int) -> None:
        """Allocate the file, and write its header if there is none."""
        os.posix_fallocate(fd, 0, self.allocated)
        if self.new or not self.has_head:
            os.pwrite(fd, segment_format.encode_file_head(self.head), 0)
            self.has_head = True
        if self.new:
            sync_directory(self.path.parent)

    def seal(self) -> None:
        """On the writer's thread: end the segment, and write its index beside it."""
        if self._write_fd >= 0:
            os.ftruncate(self._write_fd, self.index.end)
            os.fdatasync(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
        if self.damage or not self.index.positions:
            # An index does not hold damaged ranges: such a segment is scanned at each start.
            self.index_path.unlink(missing_ok=True)
        else:
            write_atomically(self.index_path, encode_index(self.index))

    def rescan(self) -> bool:
        """Scan a segment that was opened by its index only; False if it is scanned already."""
        if self.scanned:
            return False
        recovery = segment_format.recover(
            self.path.read_bytes(), self.head.sequence, self.head.offset
        )
        self.index, self.damage = index_of(self.head, recovery), recovery.damage
        self.staged_end = self.index.end
        self.scanned = True
        return True

    @property
    def trusted(self) -> bool:
        """Whether groups can be read without verifying their checksums again."""
        return self.scanned and not self.damage

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    def pread(self, position: int, size: int) -> bytes:
        if self._read_fd < 0:
            self._read_fd = os.open(self.path, os.O_RDONLY)
        return os.pread(self._read_fd, size, position)

    def group_at(self, position: int) -> Group | None:
        """The group with its head at a position; None at the end or if the head is damaged."""
        if position >= self.index.end:
            return None
        return segment_format.decode_group(
            self.pread(position, segment_format.GROUP_HEAD_SIZE), position, position
        )

    def after_damage(self, position: int) -> int | None:
        """The end of the damaged range at a position; None if it is not in one."""
        ends = (
            damaged.end for damaged in self.damage if damaged.position <= position < damaged.end
        )
        return next(ends, None)

    def close(self) -> None:
        for fd in (self._write_fd, self._read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = -1

    def delete(self) -> None:
        """On the writer's thread: remove the files."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.index_path.unlink(missing_ok=True)


def file_name(sequence: int, offset: int) -> str:
    """The name of a segment: its first sequence number and offset, padded so that names sort."""
    return f"{sequence:020d}-{offset:020d}.log"


def parse_file_name(name: str) -> tuple[int, int] | None:
    parts = name.removesuffix(".log").split("-")
    if len(parts) == 2 and all(len(part) == 20 and part.isdigit() for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def create_segment(directory: Path, head: FileHead, allocated: int) -> SegmentFile:
    """A new segment. The first write creates its file."""
    index = SparseIndex(head.sequence, head.offset, segment_format.FILE_HEAD_SIZE)
    path = directory / file_name(head.sequence, head.offset)
    segment = SegmentFile(path, head, index, allocated, scanned=True)
    segment.new = True
    return segment


def open_segment(path: Path, expected: FileHead, problems: list[str]) -> SegmentFile | None:
    """Open a segment of an earlier process; problems are added to `problems`.

    `expected` is the header that its name and directory imply. A file with another header, or
    with data but no valid group, is set aside: it is renamed so that it is never overwritten.
    A file with only zeros after its header is an empty segment.
    """
    head = segment_format.decode_file_head(read_start(path))
    if isinstance(head, FileHead) and head._replace(created_ms=0) != expected:
        set_aside(path, "it belongs to another partition or position", problems)
        return None
    size = path.stat().st_size
    index = read_index(path)
    start = (segment_format.FILE_HEAD_SIZE, expected.sequence, expected.offset)
    if index is not None and index.end == size and index.starts_at(*start):
        segment: SegmentFile | None = SegmentFile(path, expected, index, size, scanned=False)
    else:
        segment = scan(path, expected, size, problems)
    if segment is not None and isinstance(head, str):
        problems.append(f"{path.name}: {head}; its groups are read anyway")
        segment.has_head = False
    return segment


def read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(segment_format.FILE_HEAD_SIZE)


def read_index(path: Path) -> SparseIndex | None:
    try:
        return decode_index(path.with_suffix(".idx").read_bytes())
    except OSError:
        return None


def set_aside(path: Path, reason: str, problems: list[str]) -> None:
    """Rename a file so that it is not read any more, and cut its trailing zeros off."""
    aside = path.with_name(path.name + ".aside")
    while aside.exists():
        aside = aside.with_name(aside.name + "+")
    path.rename(aside)
    os.truncate(aside, segment_format.content_end(aside.read_bytes()))
    problems.append(f"{path.name}: {reason}; set aside as {aside.name}")


def scan(path: Path, head: FileHead, size: int, problems: list[str]) -> SegmentFile | None:
    """Read a whole segment group by group, and cut a torn tail off.

    None if the file has data but no valid group: it is set aside.
    """
    recovery = segment_format.recover(path.read_bytes(), head.sequence, head.offset)
    if recovery.torn_bytes and not recovery.groups:
        set_aside(path, "it has no valid group", problems)
        return None
    segment = SegmentFile(path, head, index_of(head, recovery), size, scanned=True)
    segment.damage = recovery.damage
    for damaged in recovery.damage:
        problems.append(f"{path.name}: bytes {damaged.position} to {damaged.end} are damaged")
    if recovery.torn_bytes:
        problems.append(
            f"{path.name}: {recovery.torn_bytes} bytes at {recovery.end} are not a valid group "
            "(a partial write that was never acknowledged, or later damage); they are cut off"
        )
        os.truncate(path, recovery.end)
    return segment


def index_of(head: FileHead, recovery: Recovery) -> SparseIndex:
    index = SparseIndex(head.sequence, head.offset, segment_format.FILE_HEAD_SIZE)
    for group in recovery.groups:
        index.add(group)
    return index
