"""A copy of a data directory with known contents, and ways to damage it at random.

Each way records the bytes that it has changed, so that a test knows what must have survived: every
group without a changed byte.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Span = tuple[int, int]
WHOLE_FILE: Span = (0, 1 << 60)


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """One acknowledged append, and its position in a file."""

    hub: str
    partition: int
    file: Path  # relative to the data directory
    span: Span
    sequence: int
    events: tuple[tuple[int, bytes], ...]  # offset and body


@dataclass
class DamagedDirectory:
    """A copy of a data directory, damaged step by step."""

    path: Path
    rng: Random
    changed: dict[Path, list[Span]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)  # what was done, for the message of a failure

    def survives(self, group: KnownGroup) -> bool:
        start, end = group.span
        return not any(s < end and start < e for s, e in self.changed.get(group.file, []))

    def record(self, path: Path, start: int, end: int, step: str) -> None:
        file = path.relative_to(self.path)
        self.changed.setdefault(file, []).append((start, end))
        self.steps.append(f"{step}: {file} {start}..{end}")

    def pick(self, *patterns: str) -> Path:
        """One of the existing files."""
        files = [p for pattern in patterns for p in self.path.glob(pattern) if p.is_file()]
        return self.rng.choice(sorted(files))

    def segment(self) -> Path:
        return self.pick("hubs/*/*/*.log")

    def damage(self) -> None:
        self.rng.choice(WAYS)(self)


# -- ways to damage -------------------------------------------------------------------------------


def flip_bit(directory: DamagedDirectory) -> None:
    rng, path = directory.rng, directory.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    overwrite(directory, path, lambda old: bytes([old[0] ^ (1 << rng.randrange(8))]), 1, "flip")


def write_zeros(directory: DamagedDirectory) -> None:
    path, length = directory.segment(), some_length(directory)
    overwrite(directory, path, lambda old: bytes(len(old)), length, "zeros")


def write_noise(directory: DamagedDirectory) -> None:
    path, length = directory.segment(), some_length(directory)
    overwrite(directory, path, lambda old: directory.rng.randbytes(len(old)), length, "noise")


def some_length(directory: DamagedDirectory) -> int:
    return directory.rng.choice([1, 48, 200, 1000, 1 << 30])


def overwrite(
    directory: DamagedDirectory,
    path: Path,
    change: Callable[[bytes], bytes],
    length: int,
    step: str,
) -> None:
    """Change bytes at a random position of a file."""
    data = path.read_bytes()
    if not data:
        return
    # Mostly in the used part: the rest of a file that is still written to is zeros.
    used = len(data.rstrip(b"\0")) if directory.rng.random() < 0.8 else len(data)
    start = directory.rng.randrange(max(1, used)) if length < len(data) else 0
    end = min(len(data), start + length)
    path.write_bytes(data[:start] + change(data[start:end]) + data[end:])
    directory.record(path, start, end, step)


def truncate(directory: DamagedDirectory) -> None:
    path = directory.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    used = len(path.read_bytes().rstrip(b"\0"))
    size = directory.rng.choice([0, 10, 64, directory.rng.randrange(used + 1)])
    os.truncate(path, size)
    directory.record(path, size, WHOLE_FILE[1], "cut")


def extend(directory: DamagedDirectory) -> None:
    path = directory.segment()
    data = path.read_bytes().rstrip(b"\0")  # this may remove the last bytes of the last group
    directory.record(path, len(data), WHOLE_FILE[1], "more")
    path.write_bytes(data + directory.rng.randbytes(directory.rng.randrange(1, 300)))


def delete(directory: DamagedDirectory) -> None:
    path = directory.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    directory.record(path, *WHOLE_FILE, "deleted")
    path.unlink()


def duplicate(directory: DamagedDirectory) -> None:
    """Copy a file over another one, or to a new name of the right form."""
    source, target, rng = directory.segment(), directory.segment(), directory.rng
    if rng.random() < 0.5:
        sequence, offset = rng.randrange(500), rng.randrange(20_000)
        target = target.with_name(f"{sequence:020d}-{offset:020d}.log")
    if source != target:
        shutil.copyfile(source, target)
        step = f"copied from {source.relative_to(directory.path)}"
        directory.record(target, *WHOLE_FILE, step)


def swap(directory: DamagedDirectory) -> None:
    kind = directory.rng.choice(["log", "idx"])
    first, second = (directory.pick(f"hubs/*/*/*.{kind}") for _ in range(2))
    if first != second:
        data = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
        directory.record(first, *WHOLE_FILE, "swapped")
        directory.record(second, *WHOLE_FILE, "swapped")


def add_unknown(directory: DamagedDirectory) -> None:
    """Add a file or directory that the hub did not write."""
    rng = directory.rng
    folders = [directory.path, *(p for p in directory.path.glob("hubs/**") if p.is_dir())]
    names = ["junk", "x.log", f"{7:020d}-{9:020d}.log", f"{7:020d}-{9:020d}.idx", "notes.txt.new"]
    path = rng.choice(folders) / rng.choice(names)
    if path.exists():
        return
    if rng.random() < 0.3:
        path.mkdir()
    else:
        path.write_bytes(rng.randbytes(rng.choice([0, 30, 64, 500])))
    kind = "dir" if path.is_dir() else ""
    directory.steps.append(f"unknown: {path.relative_to(directory.path)} {kind}")


WAYS = [flip_bit, flip_bit, write_zeros, write_noise, truncate, extend, delete, duplicate, swap,
        add_unknown]  # fmt: skip
