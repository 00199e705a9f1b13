"""The metadata of blobs: how rows are read from it and written to it.

The official SDKs keep everything in metadata: `ownerid` of an ownership, `offset` and
`sequencenumber` of a checkpoint. Our own keys (`epoch`, `successor`, `deadline`, `rate`, `pinned`,
`state`) are ignored by them. When they write a row they drop our keys, and a missing epoch reads as
0.

    listed blob -> ListedBlob -> read_ownership, read_checkpoint -> rows
    rows -> ownership_metadata, checkpoint_metadata -> headers of a write
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Rows of official SDKs are read without errors, in any format. An invalid position reads as no
position, so that a reader starts at its default position and never after unhandled events. Numbers
beyond every limit (limits.py) were not written by an SDK: they raise a StoreError with the name of
the blob.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pumphouse.errors import StoreError
from pumphouse.leases.model import STATES, Checkpoint, Group, Ownership
from pumphouse.leases.stores.limits import (
    ENQUEUED_MS_MAX,
    SEQUENCE_MAX,
    checked_deadline,
    checked_epoch,
    checked_integer,
    checked_offset,
    shown,
    usable_rate,
)

# Date and Last-Modified are whole seconds: a difference of n means an age of more than n - 1.
RESOLUTION_S = 1.0
# .NET 5.11.3 to 5.11.6 wrote these for a checkpoint by sequence number alone.
NO_OFFSET = ("", "no offset")
NO_SEQUENCE = -1
BEFORE_ALL = "-1"

# Twice as much as Azure allows for one blob (8 KiB).
METADATA_CHARS_MAX = 16 * 1024

# More digits than any limit has: int() of thousands of digits is slow, or refused by Python.
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
_MORE_DIGITS = re.compile(r"\s*\+?[0-9]{31,}\s*")
BEYOND_ALL_LIMITS = 10**30
_PLAIN = re.compile(r"[!-~]([ -~]*[!-~])?|")
_ENCODED = re.compile(r"=\?utf-8\?b\?([A-Za-z0-9+/=]*)\?=")


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """A blob as listed. Both times are by the store's clock, in seconds since 1970."""

    name: str
    etag: str
    metadata: Mapping[str, str]
    modified: float
    now: float
    lease_state: str = "available"

    @property
    def age_s(self) -> float:
        """The minimum age of the blob, so that no lease expires too early."""
        return max(0.0, self.now - self.modified - RESOLUTION_S)

    @property
    def where(self) -> str:
        """The blob in an error."""
        return f"blob {shown(self.name)}"


def checked_metadata(blob: ListedBlob) -> ListedBlob:
    """The blob; StoreError if its metadata is far larger than the service allows."""
    chars = sum(len(key) + len(value or "") for key, value in blob.metadata.items())
    if chars > METADATA_CHARS_MAX:
        raise StoreError(
            f"{blob.where} has {chars} characters of metadata, but {METADATA_CHARS_MAX} are the "
            "most; correct or remove it"
        )
    return blob


# -- ownership ------------------------------------------------------------------------------------


def read_ownership(partition: str, blob: ListedBlob) -> Ownership:
    metadata = with_lower_case_keys(blob.metadata)
    successor = decoded(metadata.get("successor", ""))
    owner = decoded(metadata.get("ownerid", ""))  # Rust releases by removing the key
    deadline = parse_number(metadata.get("deadline", "")) if owner else None
    deadline_s = deadline - blob.now if deadline is not None else None
    return Ownership(
        partition=partition,
        owner=owner,
        epoch=parse_epoch(metadata.get("epoch", ""), blob.where),
        etag=blob.etag,
        age_s=blob.age_s,
        successor=successor if deadline is not None else "",
        deadline_s=checked_deadline(deadline_s, blob.where),
        rate=usable_rate(parse_number(metadata.get("rate", ""))),
        pinned=metadata.get("pinned", "") == "true",
        state=read_state(metadata.get("state", "")),
    )


def ownership_metadata(row: Ownership, now: float) -> dict[str, str]:
    """The metadata of a row that is written at `now` by the store's clock."""
    metadata = {"ownerid": encoded(row.owner), "epoch": str(row.epoch)}
    if row.successor and row.deadline_s is not None:
        metadata["successor"] = encoded(row.successor)
    if row.deadline_s is not None:
        metadata["deadline"] = f"{now + row.deadline_s:.3f}"
    if row.rate is not None:
        metadata["rate"] = repr(float(row.rate))
    if row.pinned:
        metadata["pinned"] = "true"
    if row.state:
        metadata["state"] = row.state
    return metadata


def read_state(text: str) -> str:
    """The state of a partition; "" if it is not one of ours."""
    return text if text in STATES else ""


# -- checkpoint -----------------------------------------------------------------------------------


def read_checkpoint(group: Group, partition: str, blob: ListedBlob) -> Checkpoint:
    metadata = with_lower_case_keys(blob.metadata)
    sequence, offset = read_position(
        metadata.get("sequencenumber", ""), metadata.get("offset", ""), blob.where
    )
    return Checkpoint(
        group=group,
        partition=partition,
        sequence=sequence,
        offset=offset,
        epoch=read_epoch(blob),
        etag=blob.etag,
        enqueued_ms=read_enqueued_ms(metadata.get("enqueuedms", ""), blob.where),
    )


def checkpoint_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """The metadata of a checkpoint with a position, as the SDKs read it.

    The Python SDK fails on a missing or empty sequence number, so -1 stands for none.
    """
    sequence, offset = written_position(checkpoint)
    metadata = {"offset": offset, "sequencenumber": str(sequence), "epoch": str(checkpoint.epoch)}
    if checkpoint.enqueued_ms is not None:
        metadata["enqueuedms"] = str(checkpoint.enqueued_ms)
    return metadata


def read_stamp(group: Group, partition: str, blob: ListedBlob) -> Checkpoint:
    return Checkpoint(group, partition, epoch=read_epoch(blob), etag=blob.etag)


def read_epoch(blob: ListedBlob) -> int:
    """The epoch of a row, a checkpoint or a stamp; 0 if an official SDK wrote it."""
    return parse_epoch(with_lower_case_keys(blob.metadata).get("epoch", ""), blob.where)


def parse_epoch(text: str, where: str) -> int:
    """An epoch. A missing or negative one is 0: early Java writes -1 before the first claim."""
    return checked_epoch(max(0, parse_integer(text) or 0), where)


def read_enqueued_ms(text: str, where: str) -> int | None:
    if (number := parse_integer(text)) is None:
        return None
    return checked_integer(number, 0, ENQUEUED_MS_MAX, "time enqueuedms", where)


def stamp_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    return {"epoch": str(checkpoint.epoch)}


def read_position(sequence: str, offset: str, where: str) -> tuple[int | None, str | None]:
    """Sequence number and offset, each None if it is missing."""
    position_offset = None if offset.strip().lower() in NO_OFFSET else offset.strip()
    checked_offset(position_offset, where)
    if (number := parse_integer(sequence)) is not None:
        number = max(NO_SEQUENCE, number)
        checked_integer(number, NO_SEQUENCE, SEQUENCE_MAX, "sequence number", where)
    # A negative number means "before the first event". If the two disagree, the offset is used.
    if number is not None and (number < 0) != (position_offset == BEFORE_ALL):
        number = None
    return number, position_offset


def written_position(checkpoint: Checkpoint) -> tuple[int, str]:
    """Sequence number and offset as they are written; -1 and "" if unknown.

    The position before the first event is written as -1 in both fields. A sequence number of -1
    with another offset means unknown.
    """
    if checkpoint.sequence is None:
        return NO_SEQUENCE, checkpoint.offset or ""
    default_offset = BEFORE_ALL if checkpoint.sequence < 0 else ""
    return checkpoint.sequence, checkpoint.offset or default_offset


# -- values ---------------------------------------------------------------------------------------


def with_lower_case_keys(metadata: Mapping[str, str | None]) -> dict[str, str]:
    """Metadata with keys in lower case (early Java wrote `OwnerId`); a lower-case key wins."""
    pairs = sorted(metadata.items(), key=lambda pair: pair[0] == pair[0].lower())
    return {key.lower(): value or "" for key, value in pairs}


def parse_integer(text: str) -> int | None:
    """A whole number, or None. One with more than 30 digits is beyond every limit anyway."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return BEYOND_ALL_LIMITS if _MORE_DIGITS.fullmatch(text) else None


def parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def encoded(value: str) -> str:
    """A name as a header value: unchanged, or in base64 if it is not plain ASCII."""
    return _base64(value) if _needs_base64(value) else value


def decoded(value: str) -> str:
    """The name that `encoded` wrote. A value that `encoded` cannot have written is kept.

    Otherwise a rewrite of a row of another SDK could rename its owner.
    """
    name = _from_base64(value)
    return value if name is None else name


def _needs_base64(value: str) -> bool:
    return not _PLAIN.fullmatch(value) or _from_base64(value) is not None


def _base64(value: str) -> str:
    return f"=?utf-8?b?{base64.b64encode(value.encode()).decode()}?="


def _from_base64(value: str) -> str | None:
    if not (match := _ENCODED.fullmatch(value)):
        return None
    try:
        name = base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return name if _base64(name) == value and _needs_base64(name) else None
