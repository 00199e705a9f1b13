"""Bodies of the Event Processor Host: three spellings are read, one is written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import StoreError
from pumphouse.leases.model import (
    Checkpoint,
    Group,
    Ownership,
    claim,
    hand_over,
    nominate,
    raise_epoch,
    release,
    renew,
)
from pumphouse.leases.stores.blob_lease.body import (
    DEPTH_MAX,
    SPELLINGS,
    Body,
    Spelling,
    encode_body,
    ownership_of,
    read_body,
    spell,
    with_checkpoint,
    with_row,
)
from pumphouse.leases.stores.blob_lease.steps import Step, lease_step
from pumphouse.leases.stores.limits import ENQUEUED_MS_MAX

GROUP = Group("house.servicebus.windows.net", "sensors")
NOW = 1_763_000_000.0
# As each generation wrote it, after event 42 at offset 4200.
AS_WRITTEN: dict[Spelling, dict[str, Any]] = {
    "net": {"Offset": "4200", "SequenceNumber": 42, "PartitionId": "3", "Owner": "vm-1",
            "Token": "t-1", "Epoch": 7},
    "java": {"offset": "4200", "sequenceNumber": 42, "partitionId": "3", "owner": "vm-1",
             "token": "t-1", "epoch": 7},
    "python": {"offset": "4200", "sequence_number": 42, "partition_id": "3", "owner": "vm-1",
               "token": "t-1", "epoch": 7, "event_processor_context": None},
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_body_is_read(spelling: Spelling) -> None:
    body = read_body("3", json.dumps(AS_WRITTEN[spelling]).encode())
    assert replace(body, unknown_fields=()) == Body("3", "vm-1", "t-1", 7, 42, "4200")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_body_is_written_as_the_legacy_host_wrote_it(spelling: Spelling) -> None:
    body = read_body("3", json.dumps(AS_WRITTEN[spelling]).encode())
    assert json.loads(encode_body(body, spelling)) == AS_WRITTEN[spelling]


@pytest.mark.parametrize(("spelling", "epoch"), [("net", 0), ("java", -1), ("python", 0)])
def test_an_initialised_blob_is_written_as_by_legacy_hosts(spelling: Spelling, epoch: int) -> None:
    text = encode_body(Body("3"), spelling)
    fields = json.loads(text)
    assert fields[spell(("epoch",), spelling)] == epoch
    assert fields[spell(("offset",), spelling)] is None
    assert fields[spell(("sequence", "number"), spelling)] == 0  # .NET has no null here
    body = read_body("3", text)
    assert (body.row_etag, body.checkpoint_etag) == ("", "")


@pytest.mark.parametrize(
    "text", [b"", b" \n", b'{"Owner": {"a": 1}, "Epoch": "x"}', b'{"Rate": -1}']
)
def test_invalid_values_read_as_missing(text: bytes) -> None:
    assert replace(read_body("3", text), unknown_fields=()) == Body("3")


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"x": %b}' % (b"1" * 5000), b"\x00" * 50],
)
def test_a_body_that_is_not_a_lease_raises(text: bytes) -> None:
    """Otherwise the next write would replace it, and its checkpoint would be gone."""
    with pytest.raises(StoreError, match=r"blob '\$Default/3' has the body .* object in JSON"):
        read_body("3", text, "$Default/3")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


HUGE = "1" + "0" * 400  # no float holds it


@pytest.mark.parametrize("field", ["Deadline", "Rate"])
@pytest.mark.parametrize("number", [HUGE, "-" + HUGE, "1e400", "NaN"])
def test_a_number_out_of_range_reads_as_missing(field: str, number: str) -> None:
    body = read_body("3", f'{{"{field}": {number}}}'.encode())
    assert body == Body("3")
    assert ownership_of(body, True, NOW).deadline_s is None


@pytest.mark.parametrize("field", ["Epoch", "EnqueuedMs", "CheckpointEpoch", "SequenceNumber"])
@pytest.mark.parametrize("number", [HUGE, str(2**63), "9" * 19, "9" * 31])
def test_a_number_beyond_every_limit_raises(field: str, number: str) -> None:
    """An epoch that reads as 0 would fall; a position that reads as none would be lost."""
    with pytest.raises(StoreError, match=r"blob 'x/3' has the .* whole number"):
        read_body("3", f'{{"Offset": "1", "{field}": {number}}}'.encode(), "x/3")


@pytest.mark.parametrize("field", ["Owner", "Token", "Successor", "Offset", "RowMark"])
def test_half_a_character_raises(field: str) -> None:
    with pytest.raises(StoreError, match=r"not valid Unicode") as raised:
        read_body("3", f'{{"{field}": "a\\ud800"}}'.encode())
    assert str(raised.value).isascii()


def test_a_long_offset_raises_with_its_beginning_only() -> None:
    with pytest.raises(StoreError, match="1024 characters") as raised:
        read_body("3", json.dumps({"Offset": "1\x1b" * 9000}).encode())
    assert len(str(raised.value)) < 500
    assert str(raised.value).isprintable()


def test_a_deadline_beyond_every_limit_raises() -> None:
    body = read_body("3", b'{"Owner": "a", "Successor": "b", "Deadline": 1e300}')
    with pytest.raises(StoreError, match="partition '3' has the deadline"):
        ownership_of(body, True, NOW)


def test_a_body_nested_too_deeply_raises() -> None:
    with pytest.raises(StoreError, match="object in JSON"):
        read_body("3", f'{{"x": {nested(100_000)}}}'.encode())


@pytest.mark.parametrize("token", ["a\r\nx-ms-lease-id: b", "\x1b[31m", "\u4e3b", "x" * 65, "a b"])
def test_a_token_that_is_not_a_header_value_is_not_a_lease_id(token: str) -> None:
    body = Body("3", "a", token, 7)
    assert body.lease_id == ""
    assert lease_step(body, True, token, renew(ownership_of(body, True, NOW))) == "stuck"


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 900])
def test_an_unknown_field_nested_too_deeply_is_dropped(depth: int) -> None:
    """It can be read, but a writer with less stack left could not write it."""
    text = f'{{"Owner": "a", "kept": [1], "x": {nested(depth)}, "y": {{"z": {nested(depth)}}}}}'
    assert read_body("3", text.encode()) == Body("3", "a", unknown_fields=(("kept", [1]),))


def test_a_nested_unknown_field_is_kept() -> None:
    text = f'{{"x": {nested(DEPTH_MAX)}}}'
    assert json.loads(encode_body(read_body("3", text.encode()), "net"))["x"] == json.loads(
        nested(DEPTH_MAX)
    )


@pytest.mark.parametrize(
    ("fields", "sequence", "offset"),
    [
        ({"Offset": "4200", "SequenceNumber": 42}, 42, "4200"),
        ({"Offset": 4200, "SequenceNumber": "42"}, 42, "4200"),
        ({"Offset": None, "SequenceNumber": 0}, None, None),  # .NET before the first checkpoint
        ({"SequenceNumber": 0}, None, None),
        ({"Offset": "", "SequenceNumber": 0}, None, None),
        ({"Offset": "", "SequenceNumber": 42}, 42, None),
        ({"Offset": "-1", "SequenceNumber": 0}, None, "-1"),  # JavaScript: from the start
        ({"Offset": "0", "SequenceNumber": 0}, 0, "0"),
        ({"Offset": "4200", "SequenceNumber": None}, None, "4200"),
        ({"Offset": True, "SequenceNumber": 1.5}, None, None),
    ],
)
def test_a_sequence_number_without_an_offset_is_not_a_checkpoint(
    fields: dict[str, Any], sequence: int | None, offset: str | None
) -> None:
    body = read_body("3", json.dumps(fields).encode())
    assert (body.sequence, body.offset) == (sequence, offset)


texts = st.text(max_size=8)


@given(
    st.builds(
        Body,
        partition=st.just("3"),
        owner=texts,
        token=texts,
        epoch=st.integers(1, 2**40),
        sequence=st.none() | st.integers(0, 2**63 - 1),
        offset=st.none() | st.text("0123456789:g", min_size=1),
        successor=texts,
        deadline=st.none() | st.floats(0, 2e9),
        rate=st.none() | st.floats(0, 1e9),
        row_mark=texts,
        checkpoint_epoch=st.integers(0, 2**40),
        checkpoint_mark=st.text(min_size=1, max_size=8),
        enqueued_ms=st.none() | st.integers(0, ENQUEUED_MS_MAX),
        unknown_fields=st.just((("event_processor_context", {"a": [1]}),)),
    ),
    st.sampled_from(SPELLINGS),
)
def test_any_body_survives_a_round_trip(body: Body, spelling: Spelling) -> None:
    assert read_body("3", encode_body(body, spelling)) == body


def test_row_and_checkpoint_have_separate_etags() -> None:
    body = Body("3", "a", "t", 1, 5, "50", row_mark="r", checkpoint_mark="c")
    moved = with_checkpoint(body, Checkpoint(GROUP, "3", 6, "60", 1), "d")
    assert moved.row_etag == body.row_etag
    assert moved.checkpoint_etag != body.checkpoint_etag
    renewed = with_row(body, Ownership("3", "a", 1), "t", NOW, "s")
    assert renewed.row_etag != body.row_etag
    assert renewed.checkpoint_etag == body.checkpoint_etag


@pytest.mark.parametrize(("leased", "age_s"), [(True, 0.0), (False, math.inf)])
def test_a_row_is_new_while_its_lease_is_held(leased: bool, age_s: float) -> None:
    row = ownership_of(Body("3", "a", "t", 1), leased, NOW)
    assert row.age_s == age_s


def test_a_deadline_is_a_time_of_the_stores_clock() -> None:
    asked = nominate(Ownership("3", "a", 1), "b", 20.0)
    body = with_row(Body("3", "a", "t", 1), asked, "t", NOW, "m")
    assert body.deadline == NOW + 20
    assert ownership_of(body, True, NOW + 30).deadline_s == -10.0


# -- which lease ----------------------------------------------------------------------------------

HELD = Body("3", "a", "t-1", 7)
ROW = ownership_of(HELD, True, NOW)


@pytest.mark.parametrize(
    ("requested", "leased", "our_token", "step"),
    [
        (renew(ROW), True, "t-1", "renew"),
        (raise_epoch(ROW, 9), True, "t-1", "renew"),
        (renew(ROW), True, "", "change"),  # after a restart, or handed over to us
        (renew(ROW), False, "t-1", "acquire"),  # it expired, and no host has claimed it
        (claim(ROW, "3", "b"), False, "", "acquire"),
        (claim(ROW, "3", "b"), True, "", "change"),  # a steal
        (hand_over(nominate(ROW, "b", 9)), True, "t-1", "change"),
        (nominate(ROW, "b", 9), True, "", "borrow"),
        (nominate(ROW, "b", 9), False, "", "borrow"),
        (release(ROW), True, "t-1", "release"),
        (release(ROW), False, "", "release"),
    ],
)
def test_the_lease_step_of_every_write(
    requested: Ownership, leased: bool, our_token: str, step: Step
) -> None:
    assert lease_step(HELD, leased, our_token, requested) == step


def test_a_lease_without_a_shown_id_cannot_be_taken() -> None:
    hidden = replace(HELD, token="")
    assert lease_step(hidden, True, "", claim(ROW, "3", "b")) == "stuck"
    assert lease_step(hidden, True, "", nominate(ROW, "b", 9)) == "stuck"
    assert lease_step(hidden, False, "", claim(ROW, "3", "b")) == "acquire"


def test_a_renewal_with_a_waiting_successor_is_not_a_nomination() -> None:
    """Its owner renews and keeps the successor; borrowing would let the lease expire."""
    waiting = replace(HELD, successor="b", deadline=NOW + 9)
    row = ownership_of(waiting, True, NOW)
    assert lease_step(waiting, True, "t-1", renew(row)) == "renew"
