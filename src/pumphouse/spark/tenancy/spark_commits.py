"""Which batches Spark has committed, read from its checkpoint folder.

A source learns of a commit when Spark plans the next batch, which may never happen. Spark's own
files show the commit at once: `offsets/N` holds the offsets of batch N, and `commits/N` exists
after its commit.

    checkpointLocation (a folder of this machine) -> is_committed
                                                     ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pumphouse.spark.offsets import hubs_in, part_of_hub


def local_folder(location: str) -> Path | None:
    """The folder of a checkpointLocation; None if it is not on this machine."""
    if not location:
        return None
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path) if parts.scheme else location)
    return None


def is_committed(folder: Path, end: Mapping[str, Any]) -> bool:
    """Whether the newest committed batch ends at this offset; False if that cannot be read."""
    try:
        newest = max((int(path.name) for path in numbered_files(folder / "commits")), default=None)
        if newest is None:
            return False
        offsets = offsets_in((folder / "offsets" / str(newest)).read_text())
        return any(end in (offset, *parts_of(offset)) for offset in offsets)
    except OSError:
        return False


def numbered_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name.isdecimal())


def parts_of(offset: Any) -> Iterator[Any]:
    """The offsets of single hubs in that of a query which reads several."""
    hubs = hubs_in(offset) if isinstance(offset, Mapping) else ()
    return (part_of_hub(offset, hub) for hub in hubs)


def offsets_in(text: str) -> Iterator[Any]:
    """The offsets of a batch: one line for each source, after a version and Spark's metadata."""
    for offset in text.splitlines()[2:]:
        try:
            yield json.loads(offset)
        except ValueError:
            continue
