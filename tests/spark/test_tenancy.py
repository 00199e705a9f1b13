"""What a tenant's journal says, and where a partition goes on: decided without any IO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pumphouse.errors import OptionError
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store_url import open_store
from pumphouse.spark.lag.known_positions import KnownPosition, epochs_in_offset
from pumphouse.spark.lag.mirror import CheckpointMirror
from pumphouse.spark.offsets import Span
from pumphouse.spark.options import SourceOptions, read_source
from pumphouse.spark.tenancy.commits import folder_of, is_committed
from pumphouse.spark.tenancy.journal import (
    Journal,
    Loss,
    Stretch,
    between,
    from_offset,
    goes_on_at,
    kept_in_place,
    may_read,
    owned_by,
    to_offset,
)
from pumphouse.spark.tenancy.leftovers import Leftovers
from pumphouse.spark.tenancy.options import processor_options
from tests.azurite.server import Azurite

GROUP = Group("name.servicebus.windows.net", "sensors")
HUB = "Endpoint=sb://name.servicebus.windows.net;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=sensors"


def found(sequence: int | None = None, epoch: int = 1) -> Checkpoint:
    return Checkpoint(GROUP, "0", sequence, None if sequence is None else str(sequence), epoch)


# -- the journal ----------------------------------------------------------------------------------


def test_a_journal_says_from_where_to_where_under_which_epoch() -> None:
    journal = Journal("watch", {"10": Stretch(5, 9, 2), "2": Stretch(100, 120, 7)})
    offset = to_offset("sensors", journal)
    assert json.dumps(offset) == (
        '{"sensors": {"2": 120, "10": 9}, "@tenancy": {"host": "watch", '
        '"stretches": {"2": [100, 120, 7], "10": [5, 9, 2]}}}'
    )
    assert from_offset("sensors", offset) == journal
    assert from_offset("sensors", json.dumps(offset)) == journal
    assert epochs_in_offset(offset) == {"2": 7, "10": 2}


def test_a_batch_stands_for_itself() -> None:
    start = Journal("watch", {"0": Stretch(0, 50, 3), "1": Stretch(0, 8, 1)})
    end = Journal("watch", {"0": Stretch(60, 70, 5), "2": Stretch(4, 4, 1)})
    assert between(start, end) == end
    assert end.spans() == [Span("0", 60, 70)]


def test_a_batch_of_a_query_that_shared_with_nobody_needs_its_start() -> None:
    start = from_offset("sensors", {"sensors": {"0": 4, "1": 8}})
    end = from_offset("sensors", {"sensors": {"0": 10, "1": 8, "2": 3}})
    assert between(start, end).stretches == {
        "0": Stretch(4, 10), "1": Stretch(8, 8), "2": Stretch(3, 3),
    }  # fmt: skip


@pytest.mark.parametrize("tenancy", [{}, {"host": "a", "stretches": {"0": [1]}}, "x"])
def test_a_journal_that_is_none(tenancy: object) -> None:
    with pytest.raises(OptionError, match="is no journal of a tenant"):
        from_offset("sensors", {"sensors": {}, "@tenancy": tenancy})


# -- where a partition goes on --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "told", "following"),
    [
        (None, None, None),  # nobody knows: the options tell
        (99, None, 100),  # the group knows
        (99, Stretch(100, 120, 5), 120),  # committed, and its checkpoint was not written
        (None, Stretch(100, 120, 5), 120),
        (109, Stretch(100, 120, 5), 120),  # another host has handled some of it too
        (149, Stretch(100, 120, 5), 150),  # or more
        (None, Stretch(120, 120), 120),  # a query that shared with nobody
        (99, Stretch(120, 120), 100),  # the group knows better
    ],
)
def test_where_a_partition_goes_on(
    checkpoint: int | None, told: Stretch | None, following: int | None
) -> None:
    assert goes_on_at(found(checkpoint), told) == following


def test_without_checkpoints_the_group_says_nothing() -> None:
    assert goes_on_at(found(99), None, checkpoints=False) is None
    assert goes_on_at(found(99), Stretch(0, 50, 5), checkpoints=False) == 50
    assert may_read(Stretch(0, 50, 5), found(99), checkpoints=False)


@pytest.mark.parametrize(
    ("checkpoint", "may"), [(None, True), (99, True), (80, True), (100, False)]
)
def test_a_replay_reads_what_nobody_has_handled_since(checkpoint: int | None, may: bool) -> None:
    assert may_read(Stretch(100, 120, 5), found(checkpoint)) is may


def test_tasks_keep_their_numbers() -> None:
    tasks = [(Span("0", 0, 5),), (Span("1", 0, 5), Span("2", 0, 5)), (Span("3", 0, 5),)]
    assert kept_in_place(tasks, {"2": 7, "3": 1}) == [
        ((), {}), ((Span("2", 0, 5),), {"2": 7}), ((Span("3", 0, 5),), {"3": 1}),
    ]  # fmt: skip


def test_a_loss_names_the_other_side() -> None:
    loss = Loss("3", owned_by(Ownership("3", "host-b", 6)), Span("3", 100, 120))
    assert str(loss) == (
        "partition 3 is not ours any more: host-b has it (epoch 6); events 100 to 119 are left to "
        "its owner"
    )
    assert owned_by(None) == "nobody has it"


# -- what was left --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "blob", "bloblease"])
async def test_what_was_left_is_known_to_a_later_run(
    kind: str, azurite: Azurite, tmp_path: Path
) -> None:
    stretch, again = Stretch(100, 120, 5), Stretch(80, 90, 7)
    blobs = f"{kind}:{azurite.connection_string()};Container=left-{uuid4()}"
    place = f"sqlite:///{tmp_path}/leases.db" if kind == "sqlite" else blobs
    options: dict[str, Any] = {} if kind == "sqlite" else {"create_container": True}
    async with open_store(place, **options) as store:
        first = Leftovers(GROUP, ("watch/1", ""))
        await first.note(store, "0", stretch)
        await first.note(store, "1", stretch)
        await first.note(store, "1", again)  # read from further back under another epoch
        renamed = Leftovers(GROUP, ("other", "watch/1"))
        await renamed.read(store)
        assert [renamed.has("0", stretch), renamed.has("0", again)] == [True, False]
        assert renamed.has("1", again)
        assert not renamed.has("0", Stretch(100, 120, 6))
        assert not await store.list_checkpoints(GROUP)  # the group itself knows nothing of it


# -- Spark's own files ----------------------------------------------------------------------------


def test_what_spark_has_committed(tmp_path: Path) -> None:
    end = {"sensors": {"0": 5}}
    assert not is_committed(tmp_path, end)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"sensors":{"0":5}}')
    assert not is_committed(tmp_path, end)
    (tmp_path / "commits" / ".0.crc").write_text("")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert is_committed(tmp_path, end)
    assert not is_committed(tmp_path, {"sensors": {"0": 6}})


@pytest.mark.parametrize(
    ("location", "folder"),
    [("/a b/c", "/a b/c"), ("file:///a%20b", "/a b"), ("hdfs://x/y", None), ("", None)],
)
def test_which_folder_that_is(location: str, folder: str | None) -> None:
    assert folder_of(location) == (None if folder is None else Path(folder))


# -- a listener that writes the last batch --------------------------------------------------------


@pytest.mark.parametrize(("epoch", "written"), [(4, 9), (3, None), (5, None)])
async def test_a_mirror_is_fenced_by_the_epoch(
    tmp_path: Path, epoch: int, written: int | None
) -> None:
    place = f"sqlite:///{tmp_path}/leases.db"
    async with open_store(place) as store:
        await store.update_checkpoint(Checkpoint(GROUP, "0", epoch=4))
        await CheckpointMirror(place, GROUP).write_all({"0": KnownPosition(9, "900")}, {"0": epoch})
        (mark,) = await store.list_checkpoints(GROUP)
    assert mark.sequence == written


# -- options --------------------------------------------------------------------------------------


def read(**options: str) -> SourceOptions:
    return read_source({"connectionString": HUB} | options, streaming=True, now_ms=0)


def test_by_default_everything_is_read() -> None:
    assert read().tenancy is None
    assert read(assignment="all").tenancy is None


def test_a_tenant_and_its_times() -> None:
    steady = read(assignment="steady", store="sqlite:///x.db", queryName="my query!").tenancy
    assert steady is not None
    assert (steady.host, steady.lease_s, steady.renew_s, steady.interval_s, steady.keeps) == (
        "spark-my-query", 30, 10, 10, False,
    )  # fmt: skip
    fixed = read(assignment="Fixed:4", store="sqlite:///x.db", host="watch").tenancy
    assert fixed is not None
    assert (fixed.host, fixed.lease_s, fixed.renew_s, fixed.interval_s, fixed.keeps) == (
        "watch", 60, 20, 1, True,
    )  # fmt: skip
    assert processor_options(fixed).max_partitions == 4
    secret = read(assignment="steady", store="AccountName=a;AccountKey=SECRET;Container=c")
    assert "SECRET" not in repr(secret)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"assignment": "steady"}, "needs a store"),
        ({"store": "sqlite:///x.db"}, "store needs an assignment: use steady"),
        ({"host": "a"}, "host needs an assignment: use steady"),
        ({"assignment": "steady", "store": "memory:"}, "of one process"),
        ({"assignment": "some", "store": "x.db"}, "unknown strategy 'some'"),
        (
            {"assignment": "eph", "store": "x.db"},
            "use steady, steady:rates, greedy, balanced, fixed:N",
        ),
        ({"assignment": "fixed:0", "store": "x.db"}, "at least 1"),
        ({"assignment": "steady", "store": "x.db", "partitions": "0"}, "partitions and assignment"),
        ({"assignment": "steady", "store": "x.db", "checkpointStore": "y.db"}, "checkpointStore"),
        (
            {"assignment": "steady", "store": "x.db", "useExclusiveReceiver": "false"},
            "useExclusiveReceiver",
        ),
        (
            {"assignment": "steady", "store": "x.db", "leaseDuration": "10s"},
            "leaseDuration, renewInterval and handOff do not fit",
        ),
    ],
)
def test_mistakes(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        read(**options)


def test_a_batch_is_no_tenant() -> None:
    with pytest.raises(OptionError, match="assignment is for streams"):
        read_source({"connectionString": HUB, "assignment": "steady"}, streaming=False, now_ms=0)
