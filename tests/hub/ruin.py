"""A data directory whose contents are known, and the ways in which it can be ruined.

A `Ruin` is a copy of such a directory; each way of damage notes which bytes it has touched, so that
a test can tell what must have survived: every group none of whose bytes were touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Span = tuple[int, int]
EVERYTHING: Span = (0, 1 << 60)


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """One append that was acknowledged, and where it lies."""

    hub: str
    partition: int
    file: Path  # within the data directory
    span: Span
    sequence: int
    offsets: tuple[int, ...]
    bodies: tuple[bytes, ...]


@dataclass
class Ruin:
    """A copy of a data directory, damaged step by step."""

    path: Path
    rng: Random
    touched: dict[Path, list[Span]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)  # what was done, for whoever reads a failure

    def survives(self, group: KnownGroup) -> bool:
        start, end = group.span
        return not any(s < end and start < e for s, e in self.touched.get(group.file, []))

    def touch(self, path: Path, start: int, end: int, what: str) -> None:
        file = path.relative_to(self.path)
        self.touched.setdefault(file, []).append((start, end))
        self.story.append(f"{what}: {file} {start}..{end}")

    def pick(self, *patterns: str) -> Path:
        """One of the files that are there."""
        found = [p for pattern in patterns for p in self.path.glob(pattern) if p.is_file()]
        return self.rng.choice(sorted(found))

    def segment(self) -> Path:
        return self.pick("hubs/*/*/*.log")

    def damage(self) -> None:
        self.rng.choice(WAYS)(self)


# -- the ways -------------------------------------------------------------------------------------


def flip(ruin: Ruin) -> None:
    path = ruin.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    overwrite(ruin, path, lambda old: bytes([old[0] ^ (1 << ruin.rng.randrange(8))]), 1, "flip")


def zero(ruin: Ruin) -> None:
    overwrite(ruin, ruin.segment(), lambda old: bytes(len(old)), some(ruin), "zeros")


def scribble(ruin: Ruin) -> None:
    overwrite(ruin, ruin.segment(), lambda old: ruin.rng.randbytes(len(old)), some(ruin), "noise")


def some(ruin: Ruin) -> int:
    return ruin.rng.choice([1, 48, 200, 1000, 1 << 30])


def overwrite(
    ruin: Ruin, path: Path, change: Callable[[bytes], bytes], length: int, what: str
) -> None:
    """Change a stretch of a file, somewhere in it."""
    data = path.read_bytes()
    if not data:
        return
    # Half of the time where something is: the rest of a file that is still written to is zeros.
    used = len(data.rstrip(b"\0")) if ruin.rng.random() < 0.8 else len(data)
    start = ruin.rng.randrange(max(1, used)) if length < len(data) else 0
    end = min(len(data), start + length)
    path.write_bytes(data[:start] + change(data[start:end]) + data[end:])
    ruin.touch(path, start, end, what)


def cut(ruin: Ruin) -> None:
    path = ruin.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    used = len(path.read_bytes().rstrip(b"\0"))
    size = ruin.rng.choice([0, 10, 64, ruin.rng.randrange(used + 1)])
    os.truncate(path, size)
    ruin.touch(path, size, EVERYTHING[1], "cut")


def extend(ruin: Ruin) -> None:
    path = ruin.segment()
    data = path.read_bytes().rstrip(b"\0")  # which may well be the last bytes of the last group
    ruin.touch(path, len(data), EVERYTHING[1], "more")
    path.write_bytes(data + ruin.rng.randbytes(ruin.rng.randrange(1, 300)))


def delete(ruin: Ruin) -> None:
    path = ruin.pick("hubs/*/*/*.log", "hubs/*/*/*.idx")
    ruin.touch(path, *EVERYTHING, "deleted")
    path.unlink()


def duplicate(ruin: Ruin) -> None:
    """A file under the name of another one, or under a name of its own that looks right."""
    source, target = ruin.segment(), ruin.segment()
    if ruin.rng.random() < 0.5:
        sequence, offset = ruin.rng.randrange(500), ruin.rng.randrange(20_000)
        target = target.with_name(f"{sequence:020d}-{offset:020d}.log")
    if source != target:
        shutil.copyfile(source, target)
        ruin.touch(target, *EVERYTHING, f"copied from {source.relative_to(ruin.path)}")


def swap(ruin: Ruin) -> None:
    kind = ruin.rng.choice(["log", "idx"])
    one, two = ruin.pick(f"hubs/*/*/*.{kind}"), ruin.pick(f"hubs/*/*/*.{kind}")
    if one != two:
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        ruin.touch(one, *EVERYTHING, "swapped")
        ruin.touch(two, *EVERYTHING, "swapped")


def litter(ruin: Ruin) -> None:
    """Files and directories that have no business there."""
    folders = [ruin.path, *(p for p in ruin.path.glob("hubs/**") if p.is_dir())]
    names = ["junk", "x.log", f"{7:020d}-{9:020d}.log", f"{7:020d}-{9:020d}.idx", "notes.txt.new"]
    path = ruin.rng.choice(folders) / ruin.rng.choice(names)
    if path.exists():
        return
    if ruin.rng.random() < 0.3:
        path.mkdir()
    else:
        path.write_bytes(ruin.rng.randbytes(ruin.rng.choice([0, 30, 64, 500])))
    ruin.story.append(f"litter: {path.relative_to(ruin.path)} {'dir' if path.is_dir() else ''}")


WAYS = [flip, flip, zero, scribble, cut, extend, delete, duplicate, swap, litter]
