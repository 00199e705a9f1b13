"""What does the metadata of a blob say, and what do we write there?

The official SDKs keep everything in metadata: `ownerid` of an ownership, `offset` and
`sequencenumber` of a checkpoint. Ours are further keys (`epoch`, `successor`, `deadline`, `rate`,
`pinned`) that they ignore; when they write a row they drop them, and an epoch that is not there
reads 0.

    listed blob -> ListedBlob -> read_ownership, read_checkpoint -> rows
    rows -> ownership_metadata, checkpoint_metadata -> headers of a write
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Others' rows are read with mercy: no spelling is an error, and what is no position is no position,
so that a reader starts where it was told to, and never after events that nobody handled.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pumphouse.leases.model import Checkpoint, Group, Ownership

# Both clocks, Date and Last-Modified, show whole seconds: a difference of n is an age above n - 1.
RESOLUTION_S = 1.0
# .NET 5.11.3 to 5.11.6 wrote these words for a checkpoint by sequence number alone.
NO_OFFSET = ("", "no offset")
NO_SEQUENCE = -1
BEFORE_ALL = "-1"

_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")
_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?|")
_ENCODED = re.compile(r"=\?utf-8\?b\?([A-Za-z0-9+/=]*)\?=")


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """A blob as it was listed; both times by the store's clock, in seconds since 1970."""

    name: str
    etag: str
    metadata: Mapping[str, str]
    modified: float
    now: float
    lease_state: str = "available"

    @property
    def age_s(self) -> float:
        """How old the blob is at least: nobody is declared dead too early."""
        return max(0.0, self.now - self.modified - RESOLUTION_S)


# -- ownership ------------------------------------------------------------------------------------


def read_ownership(partition: str, found: ListedBlob) -> Ownership:
    said = folded(found.metadata)
    successor = text(said.get("successor", ""))
    owner = text(said.get("ownerid", ""))  # Rust releases by removing the key
    until = number(said.get("deadline", "")) if owner else None
    return Ownership(
        partition=partition,
        owner=owner,
        epoch=max(0, integer(said.get("epoch", "")) or 0),
        etag=found.etag,
        age_s=found.age_s,
        successor=successor if until is not None else "",
        deadline_s=until - found.now if until is not None else None,
        rate=not_negative(number(said.get("rate", ""))),
        pinned=said.get("pinned", "") == "true",
    )


def ownership_metadata(row: Ownership, now: float) -> dict[str, str]:
    """The row as it is written at a moment of the store's clock."""
    said = {"ownerid": encoded(row.owner), "epoch": str(row.epoch)}
    if row.successor and row.deadline_s is not None:
        said["successor"] = encoded(row.successor)
    if row.deadline_s is not None:
        said["deadline"] = f"{now + row.deadline_s:.3f}"
    if row.rate is not None:
        said["rate"] = repr(float(row.rate))
    if row.pinned:
        said["pinned"] = "true"
    return said


# -- checkpoint -----------------------------------------------------------------------------------


def read_checkpoint(group: Group, partition: str, found: ListedBlob) -> Checkpoint:
    said = folded(found.metadata)
    sequence, offset = read_position(said.get("sequencenumber", ""), said.get("offset", ""))
    return Checkpoint(
        group=group,
        partition=partition,
        sequence=sequence,
        offset=offset,
        epoch=read_epoch(found),
        etag=found.etag,
        enqueued_ms=integer(said.get("enqueuedms", "")),
    )


def checkpoint_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """A checkpoint with a position as the SDKs read it; for others there is a stamp.

    Python's fails on a sequence number that is missing or empty, so -1 stands for none.
    """
    sequence, offset = written_position(checkpoint)
    said = {"offset": offset, "sequencenumber": str(sequence), "epoch": str(checkpoint.epoch)}
    if checkpoint.enqueued_ms is not None:
        said["enqueuedms"] = str(checkpoint.enqueued_ms)
    return said


def read_stamp(group: Group, partition: str, found: ListedBlob) -> Checkpoint:
    return Checkpoint(group, partition, epoch=read_epoch(found), etag=found.etag)


def read_epoch(found: ListedBlob) -> int:
    """The epoch of a checkpoint or a stamp; 0 if an official SDK wrote it."""
    return max(0, integer(folded(found.metadata).get("epoch", "")) or 0)


def stamp_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    return {"epoch": str(checkpoint.epoch)}


def read_position(sequence: str, offset: str) -> tuple[int | None, str | None]:
    """Sequence number and offset, each None if it is not told."""
    place = None if offset.strip().lower() in NO_OFFSET else offset.strip()
    number = integer(sequence)
    # Before the first event there is no event: where the two disagree the safer one counts.
    if number is not None and (number < 0) != (place == BEFORE_ALL):
        number = None
    return number, place


def written_position(checkpoint: Checkpoint) -> tuple[int, str]:
    """Sequence number and offset as both are written; -1 and "" if they are not known.

    The place before the first event is -1 twice, since -1 alone says nothing.
    """
    if checkpoint.sequence is None:
        return NO_SEQUENCE, checkpoint.offset or ""
    before = BEFORE_ALL if checkpoint.sequence < 0 else ""
    return checkpoint.sequence, checkpoint.offset or before


# -- words ----------------------------------------------------------------------------------------


def folded(metadata: Mapping[str, str | None]) -> dict[str, str]:
    """Keys in lower case (early Java wrote `OwnerId`); the SDKs' own spelling wins over others."""
    pairs = sorted(metadata.items(), key=lambda pair: pair[0] == pair[0].lower())
    return {key.lower(): value or "" for key, value in pairs}


def integer(word: str) -> int | None:
    return int(word) if _INTEGER.fullmatch(word) else None


def number(word: str) -> float | None:
    try:
        found = float(word)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def not_negative(found: float | None) -> float | None:
    return None if found is None or found < 0 else found


def encoded(word: str) -> str:
    """A name as a header can carry it: as it is, or in base64 if it is not plain ASCII."""
    return _base64(word) if _needs_base64(word) else word


def text(word: str) -> str:
    """The name that `encoded` wrote; what it would not have written is taken as it is.

    Otherwise rewriting the row of a stranger with a strange name would rename its owner.
    """
    name = _from_base64(word)
    return word if name is None else name


def _needs_base64(word: str) -> bool:
    return not _PLAIN.fullmatch(word) or _from_base64(word) is not None


def _base64(word: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(word.encode()).decode()}?="


def _from_base64(word: str) -> str | None:
    if not (match := _ENCODED.fullmatch(word)):
        return None
    try:
        name = base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return name if _base64(name) == word and _needs_base64(name) else None
