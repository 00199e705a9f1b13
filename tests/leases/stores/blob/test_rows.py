"""Metadata and rows: those of every SDK are read, and ours survive a round trip."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.errors import StoreError
from pumphouse.leases.model import Checkpoint, Group, Ownership, confirm, hand_over
from pumphouse.leases.stores.blob.rows import (
    METADATA_CHARS_MAX,
    ListedBlob,
    checked_metadata,
    checkpoint_metadata,
    decoded,
    encoded,
    ownership_metadata,
    read_checkpoint,
    read_ownership,
    read_stamp,
    stamp_metadata,
)
from pumphouse.leases.stores.limits import ENQUEUED_MS_MAX

GROUP = Group("house.servicebus.windows.net", "sensors")
NOW = 1_763_000_000.0


def listed_blob(metadata: dict[str, str], age_s: float = 0.0) -> ListedBlob:
    return ListedBlob("blob", "etag", metadata, modified=NOW - age_s, now=NOW)


# -- checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "sequence", "offset"),
    [
        ({"offset": "4200", "sequencenumber": "42"}, 42, "4200"),
        ({"offset": "", "sequencenumber": "42"}, 42, None),  # .NET, by sequence alone
        ({"offset": "no offset", "sequencenumber": "42"}, 42, None),  # .NET 5.11.3 to 5.11.6
        ({"offset": "No Offset", "sequencenumber": "42"}, 42, None),
        ({"offset": "4200", "sequencenumber": ""}, None, "4200"),  # .NET, by offset alone
        ({"sequencenumber": "42"}, 42, None),  # Java in 2025
        ({"offset": "4200"}, None, "4200"),
        ({"Offset": "4200", "SequenceNumber": "42"}, 42, "4200"),  # early Java
        ({"OFFSET": "1", "offset": "4200", "sequencenumber": "42"}, 42, "4200"),
        ({"offset": "4200", "sequencenumber": "42", "clientidentifier": "vm"}, 42, "4200"),
        ({"offset": "4200", "sequencenumber": "forty-two"}, None, "4200"),
        ({"offset": "geo:7:4200", "sequencenumber": "42"}, 42, "geo:7:4200"),  # geo-replicated
        ({"offset": "0", "sequencenumber": "0"}, 0, "0"),  # zero is a value
        ({"offset": "-1", "sequencenumber": "-1"}, -1, "-1"),  # before the first event
        ({"offset": "-1", "sequencenumber": "0"}, None, "-1"),  # event 0 was not handled
        ({"offset": "", "sequencenumber": "-1"}, None, None),
        ({"offset": " ", "sequencenumber": " "}, None, None),
        ({"offset": "", "sequencenumber": ""}, None, None),
        ({}, None, None),
    ],
)
def test_checkpoints_of_every_sdk_are_read(
    metadata: dict[str, str], sequence: int | None, offset: str | None
) -> None:
    mark = read_checkpoint(GROUP, "0", listed_blob(metadata))
    assert (mark.sequence, mark.offset) == (sequence, offset)
    assert (mark.epoch, mark.etag) == (0, "etag")


@given(
    st.dictionaries(
        st.sampled_from(["offset", "Offset", "sequencenumber", "epoch", "enqueuedms", "x"]),
        st.text(max_size=12),
    )
)
def test_any_metadata_is_read_without_an_error(metadata: dict[str, str]) -> None:
    mark = read_checkpoint(GROUP, "0", listed_blob(metadata))
    assert mark.sequence is None or mark.sequence >= 0 or mark.offset == "-1"
    read_ownership("0", listed_blob(metadata))


@given(
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.text("0123456789abc:-", min_size=1),
    st.integers(0, 2**40),
    st.none() | st.integers(0, ENQUEUED_MS_MAX),
)
def test_a_checkpoint_survives_a_round_trip(
    sequence: int | None, offset: str | None, epoch: int, enqueued_ms: int | None
) -> None:
    mark = Checkpoint(GROUP, "0", sequence, offset, epoch, "etag", enqueued_ms)
    back = read_checkpoint(GROUP, "0", listed_blob(checkpoint_metadata(mark)))
    # The position before the first event has only its own sequence number.
    assert back == (replace(mark, sequence=-1 if sequence is None else None)
                    if offset == "-1" else mark)  # fmt: skip


@pytest.mark.parametrize(("sequence", "offset"), [(-1, None), (-1, "-1"), (None, "-1")])
def test_the_position_before_the_first_event_survives_a_round_trip(
    sequence: int | None, offset: str | None
) -> None:
    written_metadata = checkpoint_metadata(Checkpoint(GROUP, "0", sequence, offset, 1))
    assert (written_metadata["offset"], written_metadata["sequencenumber"]) == ("-1", "-1")
    assert read_checkpoint(GROUP, "0", listed_blob(written_metadata)).has_position


def test_a_stamp_has_an_epoch_and_no_position() -> None:
    written_metadata = stamp_metadata(Checkpoint(GROUP, "0", epoch=7))
    assert written_metadata == {"epoch": "7"}
    back = read_stamp(GROUP, "0", listed_blob(written_metadata))
    assert back == Checkpoint(GROUP, "0", epoch=7, etag="etag")
    assert not back.has_position
    assert read_stamp(GROUP, "0", listed_blob({"epoch": "x"})).epoch == 0


# -- values that no SDK writes -------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        {"sequencenumber": str(2**63), "offset": "1"},
        {"sequencenumber": "9" * 5000, "offset": "1"},
        {"offset": "7" * 1025},
        {"offset": "1", "epoch": str(2**62 + 1)},
        {"offset": "1", "epoch": "9" * 40},
        {"offset": "1", "enqueuedms": "-1"},
        {"offset": "1", "enqueuedms": "9" * 19},
    ],
)
def test_a_checkpoint_beyond_every_limit_raises_and_names_its_blob(
    metadata: dict[str, str],
) -> None:
    hostile = replace(listed_blob(metadata), name="a/b/checkpoint/0\x1b[31m")
    with pytest.raises(StoreError, match=r"blob 'a/b/checkpoint/0\\x1b\[31m' has the") as raised:
        read_checkpoint(GROUP, "0", hostile)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("metadata", [{"epoch": "9" * 19}, {"deadline": "1e300"}])
def test_an_ownership_beyond_every_limit_raises_and_names_its_blob(
    metadata: dict[str, str],
) -> None:
    with pytest.raises(StoreError, match="blob 'blob' has the"):
        read_ownership("0", listed_blob({"ownerid": "a", "successor": "b", **metadata}))


def test_a_number_far_below_zero_is_the_position_before_the_first_event() -> None:
    mark = read_checkpoint(
        GROUP, "0", listed_blob({"offset": "-1", "sequencenumber": "-" + "9" * 18})
    )
    assert (mark.sequence, mark.offset) == (-1, "-1")


def test_more_metadata_than_the_service_allows_raises() -> None:
    blob = listed_blob({"ownerid": "a", "x": "y" * (METADATA_CHARS_MAX - 9)})
    assert checked_metadata(blob) is blob
    with pytest.raises(StoreError, match="blob 'blob' has 16385 characters of metadata"):
        checked_metadata(listed_blob({"ownerid": "a", "x": "y" * (METADATA_CHARS_MAX - 8)}))


# -- ownerships -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "owner", "epoch"),
    [
        ({"ownerid": "9f2c"}, "9f2c", 0),
        ({"OwnerId": "9f2c"}, "9f2c", 0),  # early Java
        ({"ownerid": ""}, "", 0),  # released
        ({}, "", 0),  # released by Rust
        ({"ownerid": "a", "epoch": "12"}, "a", 12),
        ({"ownerid": "a", "Epoch": "12"}, "a", 12),
        ({"ownerid": "a", "epoch": "-12"}, "a", 0),
        ({"ownerid": "a", "epoch": "twelve"}, "a", 0),
    ],
)
def test_ownerships_of_every_sdk_are_read(metadata: dict[str, str], owner: str, epoch: int) -> None:
    row = read_ownership("3", listed_blob(metadata))
    assert (row.partition, row.owner, row.epoch, row.etag) == ("3", owner, epoch, "etag")
    assert (row.successor, row.deadline_s, row.rate) == ("", None, None)


def test_a_metadata_value_may_be_missing() -> None:
    row = read_ownership("3", listed_blob({"ownerid": None}))  # type: ignore[dict-item]
    assert row.owner == ""


@pytest.mark.parametrize(
    "metadata",
    [
        {"successor": "b"},
        {"successor": "b", "deadline": "soon"},
        {"successor": "b", "deadline": "nan"},
        {"ownerid": "", "deadline": str(NOW + 5)},
        {"ownerid": "", "successor": "b", "deadline": str(NOW + 5)},
    ],
)
def test_a_successor_needs_a_deadline_and_both_need_an_owner(metadata: dict[str, str]) -> None:
    row = read_ownership("0", listed_blob({"ownerid": "a", **metadata}))
    assert (row.successor, row.deadline_s) == ("", None)


def test_a_handed_over_row_keeps_its_confirmation_deadline() -> None:
    given = hand_over(Ownership("0", "a", 3, successor="b", deadline_s=20.0), 10.0)
    row = read_ownership("0", replace(listed_blob(ownership_metadata(given, NOW)), now=NOW + 4))
    assert (row.owner, row.successor, row.deadline_s, row.unconfirmed) == ("b", "", 6.0, True)
    assert "deadline" not in ownership_metadata(confirm(row), NOW)


@pytest.mark.parametrize("rate", ["-1", "inf", "nan", "fast", "", "1e300"])
def test_an_invalid_rate_reads_as_unknown(rate: str) -> None:
    assert read_ownership("0", listed_blob({"ownerid": "a", "rate": rate})).rate is None


def test_deadlines_are_times_of_the_stores_clock() -> None:
    asked = Ownership("0", "a", 3, successor="b", deadline_s=20.0)
    written_metadata = ownership_metadata(asked, NOW)
    assert written_metadata["deadline"] == f"{NOW + 20:.3f}"
    later = replace(listed_blob(written_metadata), now=NOW + 30)
    assert read_ownership("0", later).deadline_s == -10.0


@pytest.mark.parametrize(("age_s", "told_s"), [(0, 0), (1, 0), (2, 1), (31, 30), (-5, 0)])
def test_an_age_is_the_minimal_time_passed(age_s: float, told_s: float) -> None:
    """Date and Last-Modified are truncated to seconds: a difference of 31 may be 30.001."""
    assert listed_blob({}, age_s).age_s == told_s


@given(st.text(max_size=30))
def test_any_name_survives_as_a_header(name: str) -> None:
    host_name = encoded(name)
    assert host_name.isascii()
    assert host_name.isprintable()
    assert host_name == host_name.strip()
    assert decoded(host_name) == name


@pytest.mark.parametrize(
    "host_name", ["=?utf-8?b??=", "=?utf-8?b?!?=", "=?utf-8?b?YQ?=", "=?utf-8?b?YQ==?=", "50%25"]
)
def test_the_owner_name_of_an_sdk_survives_a_rewrite(host_name: str) -> None:
    assert encoded(decoded(host_name)) == host_name
