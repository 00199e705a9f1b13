"""Which batch has Spark committed last? Asked of its checkpoint folder, where we may look into it.

A source hears of a commit when the next batch is planned, which may be never. Spark's own files
tell at once: `offsets/N` says what batch N reads, and `commits/N` is there once it is done.

    checkpointLocation (a folder of this machine) -> is_committed
                                                     ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def folder_of(location: str) -> Path | None:
    """The folder that a checkpointLocation means; None if it is not one of this machine."""
    if not location:
        return None
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path) if parts.scheme else location)
    return None


def is_committed(folder: Path, end: Mapping[str, Any]) -> bool:
    """Whether a batch that ends there is done. What cannot be read says nothing."""
    try:
        newest = max((int(one.name) for one in numbered(folder / "commits")), default=None)
        if newest is None:
            return False
        return end in list(offsets_in((folder / "offsets" / str(newest)).read_text()))
    except OSError:
        return False


def numbered(folder: Path) -> Iterator[Path]:
    return (one for one in folder.iterdir() if one.name.isdecimal())


def offsets_in(text: str) -> Iterator[Any]:
    """The offsets of a batch: one line for each source, behind a version and what Spark notes."""
    for line in text.splitlines()[2:]:
        try:
            yield json.loads(line)
        except ValueError:
            continue
