"""One segment file of a partition: written by the writer's thread, read by the event loop.

Readers and the writer meet in the page cache, so following the end of a partition costs no access
to the disk itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from pumphouse.hub.storage import segment as form
from pumphouse.hub.storage.index import SparseIndex, decode_index, encode_index
from pumphouse.hub.storage.segment import FileHead, Group, Hole, Recovered


class SegmentFile:
    """One segment: its file, its head and its index."""

    def __init__(
        self, path: Path, head: FileHead, index: SparseIndex, allocated: int, walked: bool
    ) -> None:
        self.path = path
        self.head = head
        self.index = index
        self.allocated = allocated
        self.staged_end = index.end  # where the next group goes; ahead of index.end while writing
        self.holes: list[Hole] = []
        self.walked = walked  # or written by this process: its holes are known
        self.full = not walked  # no more is staged; sealed once all of it is written
        self.new = False  # there is no such file yet
        self.has_head = True  # a sound one
        self._write_fd = -1
        self._read_fd = -1

    def open_for_writing(self) -> int:
        """On the writer's thread: the file, created and allocated if it is new."""
        if self._write_fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self.prepare(fd)
            except OSError:
                os.close(fd)
                if self.new:
                    self.path.unlink(missing_ok=True)
                raise
            self._write_fd, self.new = fd, False
        return self._write_fd

    def prepare(self, fd: int) -> None:
        """Allocate a file ahead, and see to its head."""
        os.posix_fallocate(fd, 0, self.allocated)
        if self.new or not self.has_head:
            os.pwrite(fd, form.encode_file_head(self.head), 0)
            self.has_head = True
        if self.new:
            sync_directory(self.path.parent)

    def seal(self) -> None:
        """On the writer's thread: no more will be written. Leave the index beside the segment."""
        if self._write_fd >= 0:
            os.ftruncate(self._write_fd, self.index.end)
            os.fdatasync(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
        if self.holes or not self.index.positions:
            # Such a one is walked through again at each start: an index tells of no holes.
            self.index_path.unlink(missing_ok=True)
        else:
            write_whole(self.index_path, encode_index(self.index))

    def examine(self) -> bool:
        """Walk through a segment whose index was believed; whether that has told anything new."""
        if self.walked:
            return False
        recovered = form.recover(self.path.read_bytes(), self.head.sequence, self.head.offset)
        self.index, self.holes = index_of(self.head, recovered), recovered.holes
        self.staged_end = self.index.end
        self.walked = True
        return True

    @property
    def trusted(self) -> bool:
        """Whether what is read need not be checked again."""
        return self.walked and not self.holes

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    def pread(self, position: int, size: int) -> bytes:
        if self._read_fd < 0:
            self._read_fd = os.open(self.path, os.O_RDONLY)
        return os.pread(self._read_fd, size, position)

    def group_at(self, position: int) -> Group | None:
        """The group whose head is at a position; None at the end, and where the head is damaged."""
        if position >= self.index.end:
            return None
        return form.decode_group(self.pread(position, form.GROUP_HEAD_SIZE), position, position)

    def after_hole(self, position: int) -> int | None:
        """Where reading may go on behind the damage at a position."""
        inside = (hole.end for hole in self.holes if hole.position <= position < hole.end)
        return next(inside, None)

    def close(self) -> None:
        for fd in (self._write_fd, self._read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = -1

    def delete(self) -> None:
        """On the writer's thread: remove the files. Whoever reads them now keeps what it has."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.index_path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a new file is lost without this."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file in one step: either the old or the new bytes survive a crash."""
    draft = path.with_name(path.name + ".new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(draft, path)
    sync_directory(path.parent)


def file_name(sequence: int, offset: int) -> str:
    """Names sort as the segments follow each other, and say where each starts."""
    return f"{sequence:020d}-{offset:020d}.log"


def parse_file_name(name: str) -> tuple[int, int] | None:
    parts = name.removesuffix(".log").split("-")
    if len(parts) == 2 and all(len(part) == 20 and part.isdigit() for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def create_segment(directory: Path, head: FileHead, allocated: int) -> SegmentFile:
    """A segment that exists on disk once something is written to it."""
    index = SparseIndex(head.sequence, head.offset, form.FILE_HEAD_SIZE)
    path = directory / file_name(head.sequence, head.offset)
    segment = SegmentFile(path, head, index, allocated, walked=True)
    segment.new = True
    return segment


def open_segment(path: Path, expected: FileHead, warn: list[str]) -> SegmentFile | None:
    """A segment of an earlier run; what is odd about it is told in `warn`.

    `expected` is what its name and place say. A file that says otherwise, or that holds nothing of
    what it should, is not believed: it is set aside, so that nothing is written over it.
    """
    found = form.decode_file_head(read_start(path))
    if isinstance(found, FileHead) and found._replace(created_ms=0) != expected:
        set_aside(path, "it was written for another place", warn)
        return None
    size = path.stat().st_size
    sealed = read_index(path)
    start = (form.FILE_HEAD_SIZE, expected.sequence, expected.offset)
    if sealed is not None and sealed.end == size and sealed.begins(*start):
        segment: SegmentFile | None = SegmentFile(path, expected, sealed, size, walked=False)
    else:
        segment = walk(path, expected, size, warn)
    if segment is not None and isinstance(found, str):
        warn.append(f"{path.name}: {found}; its groups are read all the same")
        segment.has_head = False
    return segment


def read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(form.FILE_HEAD_SIZE)


def read_index(path: Path) -> SparseIndex | None:
    try:
        return decode_index(path.with_suffix(".idx").read_bytes())
    except OSError:
        return None


def set_aside(path: Path, why: str, warn: list[str]) -> None:
    """Give a file another name, under which nobody looks for events, and no more space than due."""
    aside = path.with_name(path.name + ".aside")
    while aside.exists():
        aside = aside.with_name(aside.name + "+")
    path.rename(aside)
    os.truncate(aside, form.torn_size(aside.read_bytes(), 0))
    warn.append(f"{path.name}: {why}; set aside as {aside.name}")


def walk(path: Path, head: FileHead, size: int, warn: list[str]) -> SegmentFile | None:
    """Read a whole segment, group by group, and cut a torn tail; None if there is nothing else."""
    recovered = form.recover(path.read_bytes(), head.sequence, head.offset)
    if recovered.torn_bytes and not recovered.groups:
        set_aside(path, "there is no sound group in it", warn)
        return None
    segment = SegmentFile(path, head, index_of(head, recovered), size, walked=True)
    segment.holes = recovered.holes
    for hole in recovered.holes:
        warn.append(f"{path.name}: bytes {hole.position} to {hole.end} are damaged; kept as a hole")
    if recovered.torn_bytes:
        warn.append(
            f"{path.name}: {recovered.torn_bytes} bytes at {recovered.end} are no sound group "
            "(written in part and never acknowledged, or damaged since); they are cut"
        )
        os.truncate(path, recovered.end)
    return segment


def index_of(head: FileHead, recovered: Recovered) -> SparseIndex:
    index = SparseIndex(head.sequence, head.offset, form.FILE_HEAD_SIZE)
    for group in recovered.groups:
        index.add(group)
    return index
