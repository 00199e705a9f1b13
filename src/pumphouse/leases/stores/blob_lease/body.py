"""The body of a blob of the Event Processor Host, in each spelling of its JSON keys.

One blob is lease and checkpoint of a partition. Its body is JSON; .NET writes `SequenceNumber`,
Java and JavaScript `sequenceNumber`, Python `sequence_number`. All are read, one is written. Values
that legacy hosts do not know (a successor, its deadline, a rate, a state, the epoch of the
checkpoint) are additional fields: legacy hosts ignore them, and drop them when they write.

    blob -> read_body -> Body -> ownership_of, checkpoint_of -> rows
    rows -> with_row, with_checkpoint -> Body -> encode_body -> blob
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Row and checkpoint share a blob, and so its etag, but change independently. So each has an etag that
is computed from its own part of the body. `row_mark` and `checkpoint_mark` are random and new at
every write, so that two writes of the same values differ.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.stores.blob.rows import (
    parse_epoch,
    read_enqueued_ms,
    read_position,
    read_state,
    written_position,
)
from pumphouse.leases.stores.limits import checked_deadline, invalid, shown, usable_rate

Spelling = Literal["net", "java", "python"]  # JavaScript uses the spelling of Java
SPELLINGS: tuple[Spelling, ...] = ("net", "java", "python")
# The epoch in a blob that was never acquired.
FIRST_EPOCH: dict[Spelling, int] = {"net": 0, "java": -1, "python": 0}
# Unknown fields that are nested deeper are dropped: json recurses, so a value that was read in a
# shallow stack might exceed the recursion limit when it is written in a deeper one.
DEPTH_MAX = 50
# Azure's lease ids are GUIDs. Text that cannot be the value of an HTTP header is not a lease id.
_LEASE_ID = re.compile("[!-~]{1,64}")


@dataclass(frozen=True, slots=True)
class Body:
    """Lease and checkpoint of one partition."""

    partition: str
    owner: str = ""
    token: str = ""  # the id of the lease, required to write the blob and to change the lease
    epoch: int = 0
    sequence: int | None = None
    offset: str | None = None
    successor: str = ""
    deadline: float | None = None  # by the store's clock, in seconds since 1970
    rate: float | None = None
    pinned: bool = False
    state: str = ""
    row_mark: str = ""
    checkpoint_epoch: int = 0
    checkpoint_mark: str = ""
    enqueued_ms: int | None = None
    # Of the keys as read; None in a new or an empty body.
    spelling: Spelling | None = field(default=None, compare=False)
    unknown_fields: tuple[tuple[str, Any], ...] = ()  # kept as read

    @property
    def lease_id(self) -> str:
        """The token, or "" if no lease can have it as its id."""
        return self.token if _LEASE_ID.fullmatch(self.token) else ""

    @property
    def row_etag(self) -> str:
        """The etag of the row; empty before the first claim, when the blob is not a row yet."""
        if not (self.owner or self.token or self.row_mark) and self.epoch <= 0:
            return ""
        return digest(self.owner, self.token, self.epoch, self.row_mark)

    @property
    def checkpoint_etag(self) -> str:
        if self.sequence is None and self.offset is None and not self.checkpoint_mark:
            return ""
        return digest(self.sequence, self.offset, self.checkpoint_epoch, self.checkpoint_mark)


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


# -- rows in a body -------------------------------------------------------------------------------


def ownership_of(body: Body, leased: bool, now: float) -> Ownership:
    """The row in a body. The age is 0 or infinite: a lease does not show when it was renewed."""
    deadline = body.deadline if body.owner else None
    deadline_s = deadline - now if deadline is not None else None
    return Ownership(
        partition=body.partition,
        owner=body.owner,
        epoch=max(0, body.epoch),
        etag=body.row_etag,
        age_s=0.0 if leased else math.inf,
        successor=body.successor if deadline is not None else "",
        deadline_s=checked_deadline(deadline_s, f"the blob of partition {shown(body.partition)}"),
        rate=body.rate,
        pinned=body.pinned,
        state=body.state,
        # Every row that Pumphouse writes has a mark.
        legacy=bool(body.owner) and not body.row_mark,
    )


def with_row(body: Body, row: Ownership, token: str, now: float, mark: str) -> Body:
    return replace(
        body,
        owner=row.owner,
        token=token,
        epoch=row.epoch,
        successor=row.successor,
        deadline=None if row.deadline_s is None else round(now + row.deadline_s, 3),
        rate=row.rate,
        pinned=row.pinned,
        state=row.state,
        row_mark=mark,
    )


def checkpoint_of(body: Body, group: Group) -> Checkpoint:
    return Checkpoint(
        group=group,
        partition=body.partition,
        sequence=body.sequence,
        offset=body.offset,
        epoch=body.checkpoint_epoch,
        etag=body.checkpoint_etag,
        enqueued_ms=body.enqueued_ms,
    )


def with_checkpoint(body: Body, requested: Checkpoint, mark: str) -> Body:
    return replace(
        body,
        sequence=requested.sequence,
        offset=requested.offset,
        checkpoint_epoch=requested.epoch,
        checkpoint_mark=mark,
        enqueued_ms=requested.enqueued_ms,
    )


# -- reading --------------------------------------------------------------------------------------

KNOWN = """offset sequencenumber partitionid owner token epoch successor deadline rate pinned
    state rowmark checkpointepoch checkpointmark enqueuedms"""


def read_body(partition: str, text: bytes, name: str = "") -> Body:
    """Decode the body of the blob with this name. Values of the wrong type are treated as missing.

    A body that is not an object in JSON, and a number beyond every limit, raise StoreError: if they
    were ignored, the next write would store a body without the checkpoint.
    """
    where = f"blob {shown(name or partition)}"
    fields = _fields(text, where)
    values = {_folded(key): value for key, value in fields.items()}
    sequence, offset = _position(values, where)

    def text_of(field: str) -> str:
        return _checked_text(_text(values.get(field)), field, where)

    return Body(
        partition=partition,
        owner=text_of("owner"),
        token=text_of("token"),
        epoch=parse_epoch(_text(values.get("epoch")), where),
        sequence=sequence,
        offset=offset,
        successor=text_of("successor"),
        deadline=_number(values.get("deadline")),
        rate=usable_rate(_number(values.get("rate"))),
        pinned=values.get("pinned") is True,
        state=read_state(_text(values.get("state"))),
        row_mark=text_of("rowmark"),
        checkpoint_epoch=parse_epoch(_text(values.get("checkpointepoch")), where),
        checkpoint_mark=text_of("checkpointmark"),
        enqueued_ms=read_enqueued_ms(_text(values.get("enqueuedms")), where),
        spelling=_spelling(fields),
        unknown_fields=tuple(
            (key, value)
            for key, value in fields.items()
            if _folded(key) not in KNOWN.split() and _is_nested_at_most(DEPTH_MAX, value)
        ),
    )


def _spelling(fields: Mapping[str, Any]) -> Spelling | None:
    return next((each for each in SPELLINGS if spell(("partition", "id"), each) in fields), None)


def _fields(text: bytes, where: str) -> dict[str, Any]:
    """The fields of a body; none in an empty one, as of a blob that was created by hand."""
    if not text.strip():
        return {}
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        return decoded
    raise invalid(where, "body", text[:100], "a lease is an object in JSON")


def _position(values: Mapping[str, Any], where: str) -> tuple[int | None, str | None]:
    """The sequence number and the offset of the checkpoint; both None if there is none.

    A missing or null offset means that there is no checkpoint: legacy hosts then write 0 as the
    sequence number. An empty offset with a sequence number was written by this store.
    """
    if values.get("offset") is None:
        return None, None
    offset_text = _checked_text(_text(values["offset"]), "offset", where)
    sequence, offset = read_position(_text(values.get("sequencenumber")), offset_text, where)
    if offset is None and not sequence and not _text(values.get("checkpointmark")):
        return None, None
    return sequence, offset


def _checked_text(text: str, field: str, where: str) -> str:
    """The text; StoreError if it has half a character, which cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(where, field, text, "it is not valid Unicode") from None
    return text


def _folded(key: str) -> str:
    return key.replace("_", "").lower()


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_nested_at_most(depth: int, value: Any) -> bool:
    if not isinstance(value, list | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_nested_at_most(depth - 1, item) for item in inner)


# -- writing --------------------------------------------------------------------------------------


def encode_body(body: Body, spelling: Spelling) -> bytes:
    fields: dict[tuple[str, ...], Any] = {
        **_position_fields(body),
        ("partition", "id"): body.partition,
        ("owner",): body.owner,
        ("token",): body.token,
        ("epoch",): body.epoch if body.row_etag else FIRST_EPOCH[spelling],
    }
    own_fields: dict[tuple[str, ...], Any] = {
        ("successor",): body.successor or None,
        ("deadline",): body.deadline,
        ("rate",): body.rate,
        ("pinned",): body.pinned or None,
        ("state",): body.state or None,
        ("row", "mark"): body.row_mark or None,
        ("checkpoint", "epoch"): body.checkpoint_epoch or None,
        ("checkpoint", "mark"): body.checkpoint_mark or None,
        ("enqueued", "ms"): body.enqueued_ms,
    }
    fields |= {words: value for words, value in own_fields.items() if value is not None}
    named = {spell(words, spelling): value for words, value in fields.items()}
    return json.dumps(named | dict(body.unknown_fields)).encode()


def _position_fields(body: Body) -> dict[tuple[str, ...], Any]:
    if body.sequence is None and body.offset is None:
        return {("offset",): None, ("sequence", "number"): 0}
    position = Checkpoint(Group("", ""), "", body.sequence, body.offset)
    sequence, offset = written_position(position)
    return {("offset",): offset, ("sequence", "number"): sequence}


def spell(words: tuple[str, ...], spelling: Spelling) -> str:
    """The name of a field: SequenceNumber, sequenceNumber or sequence_number."""
    if spelling == "python":
        return "_".join(words)
    name = "".join(word.capitalize() for word in words)
    return name if spelling == "net" else name[0].lower() + name[1:]
