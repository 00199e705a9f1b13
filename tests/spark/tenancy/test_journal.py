"""The journal of a tenant, and where a partition resumes: decided without IO."""

from __future__ import annotations

import json

import pytest

from pumphouse.errors import OptionError
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.spark.lag.known_positions import epochs_in_offset
from pumphouse.spark.offsets import Span
from pumphouse.spark.tenancy.journal import (
    Journal,
    JournalRange,
    Loss,
    complete_ranges,
    describe_owner,
    from_offset,
    keep_task_numbers,
    may_replay,
    resume_position,
    to_offset,
)

GROUP = Group("name.servicebus.windows.net", "sensors")


def checkpoint_at(sequence: int | None = None, epoch: int = 1) -> Checkpoint:
    return Checkpoint(GROUP, "0", sequence, None if sequence is None else str(sequence), epoch)


# -- the journal ----------------------------------------------------------------------------------


def test_a_journal_holds_the_range_and_the_epoch_of_each_partition() -> None:
    journal = Journal("watch", {"10": JournalRange(5, 9, 2), "2": JournalRange(100, 120, 7)})
    offset = to_offset("sensors", journal)
    assert json.dumps(offset) == (
        '{"sensors": {"2": 120, "10": 9}, "@tenancy": {"host": "watch", '
        '"stretches": {"2": [100, 120, 7], "10": [5, 9, 2]}}}'
    )
    assert from_offset("sensors", offset) == journal
    assert from_offset("sensors", json.dumps(offset)) == journal
    assert epochs_in_offset(offset) == {"2": 7, "10": 2}


def test_the_ranges_of_a_batch_do_not_depend_on_its_start() -> None:
    start = Journal("watch", {"0": JournalRange(0, 50, 3), "1": JournalRange(0, 8, 1)})
    end = Journal("watch", {"0": JournalRange(60, 70, 5), "2": JournalRange(4, 4, 1)})
    assert complete_ranges(start, end) == end
    assert end.spans() == [Span("0", 60, 70)]


def test_the_ranges_of_a_query_for_all_partitions_depend_on_its_start() -> None:
    start = from_offset("sensors", {"sensors": {"0": 4, "1": 8}})
    end = from_offset("sensors", {"sensors": {"0": 10, "1": 8, "2": 3}})
    assert complete_ranges(start, end).ranges == {
        "0": JournalRange(4, 10), "1": JournalRange(8, 8), "2": JournalRange(3, 3),
    }  # fmt: skip


@pytest.mark.parametrize("tenancy", [{}, {"host": "a", "stretches": {"0": [1]}}, "x"])
def test_an_invalid_journal_is_refused(tenancy: object) -> None:
    with pytest.raises(OptionError, match="invalid @tenancy in the checkpoint"):
        from_offset("sensors", {"sensors": {}, "@tenancy": tenancy})


# -- where a partition resumes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "committed", "following"),
    [
        (None, None, None),  # the options decide
        (99, None, 100),  # the checkpoint
        (99, JournalRange(100, 120, 5), 120),  # committed, and not checkpointed
        (None, JournalRange(100, 120, 5), 120),
        (109, JournalRange(100, 120, 5), 120),  # another host has handled some of it
        (149, JournalRange(100, 120, 5), 150),  # or more than it
        (None, JournalRange(120, 120), 120),  # a query that read all partitions
        (99, JournalRange(120, 120), 100),  # the checkpoint goes first
    ],
)
def test_a_partition_resumes_after_the_checkpoint_or_the_committed_range(
    checkpoint: int | None, committed: JournalRange | None, following: int | None
) -> None:
    assert resume_position(checkpoint_at(checkpoint), committed) == following


def test_without_checkpoints_only_the_journal_counts() -> None:
    assert resume_position(checkpoint_at(99), None, checkpoints=False) is None
    assert resume_position(checkpoint_at(99), JournalRange(0, 50, 5), checkpoints=False) == 50
    assert may_replay(JournalRange(0, 50, 5), checkpoint_at(99), checkpoints=False)


@pytest.mark.parametrize(
    ("checkpoint", "may"), [(None, True), (99, True), (80, True), (100, False)]
)
def test_a_replay_reads_a_range_that_no_other_host_has_handled(
    checkpoint: int | None, may: bool
) -> None:
    assert may_replay(JournalRange(100, 120, 5), checkpoint_at(checkpoint)) is may


def test_tasks_keep_their_numbers_without_lost_partitions() -> None:
    tasks = [(Span("0", 0, 5),), (Span("1", 0, 5), Span("2", 0, 5)), (Span("3", 0, 5),)]
    assert keep_task_numbers(tasks, {"2": 7, "3": 1}) == [
        ((), {}), ((Span("2", 0, 5),), {"2": 7}), ((Span("3", 0, 5),), {"3": 1}),
    ]  # fmt: skip


def test_a_loss_names_the_new_owner() -> None:
    loss = Loss("3", describe_owner(Ownership("3", "host-b", 6)), Span("3", 100, 120))
    assert str(loss) == (
        "partition 3 is no longer ours: host-b owns it (epoch 6); events 100 to 119 are left to "
        "its owner"
    )
    assert describe_owner(None) == "it has no owner"
