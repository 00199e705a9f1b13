"""The pure decisions of a host, as tables."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.leases.census import take_census
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership, aged, nominate
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.plan import (
    RERUN_S,
    Lease,
    Outcome,
    Pending,
    Situation,
    add_pending,
    backoff,
    checkpoint_due_in,
    choose,
    due_in_cycle,
    due_on_watch,
    granted_lease,
    is_expected,
    is_stale,
    needs_checkpoint_epochs,
    next_delay,
    next_lease,
    pumps_to_start,
    renewal_row,
    row_at,
    sequence_of,
    smoothed_rate,
    start_position,
)

OPTIONS = ProcessorOptions()
MINE = Ownership("7", "me", epoch=5, etag="e1")
HELD = granted_lease(MINE, sent_s=100.0, now_s=101.0)


# -- leases and rows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "ours"),
    [
        (MINE, True),
        (None, True),  # a stale listing, from before there was a row
        (replace(MINE, etag="e2"), True),  # our own renewal, whose response was lost
        (replace(MINE, etag="e2", successor="b", deadline_s=9.0), True),
        (replace(MINE, etag="e2", owner="b", epoch=6), False),
        (replace(MINE, etag="e2", owner="", epoch=5), False),
        (replace(MINE, etag="e2", owner="b", epoch=4), True),  # older than our claim
        (replace(MINE, etag="e2", owner="me", epoch=4), True),
        (replace(MINE, etag="e2", owner="me", epoch=6), False),  # another host of our name
        (replace(MINE, etag="e2", owner="sdk", epoch=0), False),  # an official SDK took it
    ],
)
def test_the_lease_after_its_row_was_read(row: Ownership | None, ours: bool) -> None:
    assert (next_lease(HELD, row, 110.0, 111.0) is not None) is ours


def test_a_listing_requested_before_our_write_is_ignored() -> None:
    assert next_lease(HELD, replace(MINE, etag="e0", owner="b", epoch=9), 100.5, 102.0) is HELD


@pytest.mark.parametrize(
    ("row", "old"),
    [
        (replace(MINE, etag="e0", age_s=11.0), True),  # written before our last write was sent
        (replace(MINE, etag="e0", age_s=11.0, successor="b", deadline_s=1.0), True),
        (replace(MINE, etag="e2", age_s=9.0), False),  # our own write, whose response was lost
        (replace(MINE, age_s=11.0), False),  # the row that we know
        (replace(MINE, etag="e2", owner="b", epoch=6, age_s=11.0), False),
        (None, False),
    ],
)
def test_a_listing_with_our_earlier_row_is_stale(row: Ownership | None, old: bool) -> None:
    assert is_stale(HELD, row, 110.0) is old
    assert not is_stale(replace(HELD, doubtful=True), row, 110.0)


def test_a_lease_counts_from_before_the_write_was_sent() -> None:
    assert HELD.valid_until(30.0) == 130.0


@pytest.mark.parametrize("age_s", [0.0, 4.0, 50.0])
def test_a_write_without_a_response_does_not_extend_the_lease(age_s: float) -> None:
    """Its age may be in whole seconds, or unknown: only a granted write counts."""
    after = next_lease(HELD, replace(MINE, etag="e2", age_s=age_s), 102.0, 103.0)
    assert after is not None
    assert after.valid_until(30.0) == 130.0
    assert after.row.etag == "e2"
    assert due_in_cycle(after, 103.0, OPTIONS)
    assert due_on_watch(after, 103.0, OPTIONS)
    assert not due_on_watch(HELD, 103.0, OPTIONS)
    requested = next_lease(
        HELD, replace(MINE, etag="e2", successor="b", deadline_s=9.0), 102.0, 103.0
    )
    assert requested is not None
    assert not due_on_watch(requested, 103.0, OPTIONS), "the write was of another host"


def test_the_write_of_another_host_does_not_renew_our_lease() -> None:
    requested = replace(MINE, etag="e2", successor="b", deadline_s=500.0, age_s=0.0)
    after = next_lease(HELD, requested, 120.0, 121.0)
    assert after is not None
    assert after.valid_until(30.0) == 130.0


def test_a_deadline_is_never_moved_back() -> None:
    requested = replace(MINE, etag="e2", successor="b", deadline_s=5.0)
    after = next_lease(HELD, requested, 120.0, 121.0)
    assert after is not None
    assert after.valid_until(30.0) == 124.0, "the store may report whole seconds"
    assert renewal_row(after, 123.0, None).deadline_s == 2.0
    assert row_at(after, 127.0).deadline_s == -2.0
    after_stale_row = next_lease(after, replace(MINE, etag="e3"), 122.0, 123.0)
    assert after_stale_row == after, "the request is kept"


def test_an_expected_row_is_ours() -> None:
    assert is_expected(MINE, "me", {5})
    assert not is_expected(MINE, "me", {4, 6})
    assert not is_expected(MINE, "b", {5})


def test_a_doubtful_lease_is_settled_by_its_row() -> None:
    doubtful = replace(HELD, doubtful=True)
    for etag in ("e1", "e2"):
        after = next_lease(doubtful, replace(MINE, etag=etag), 110.0, 111.0)
        assert after is not None
        assert not after.doubtful


# -- renewing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_s", "interval_s", "renew_s", "in_cycle", "on_watch"),
    [
        (9.5, 10, 10, True, False),  # in a settled fleet only the cycle renews
        (1.0, 10, 10, False, False),  # a cycle that follows at once does not renew again
        (11.0, 10, 10, True, True),
        (8.0, 1, 10, False, False),  # many cycles per renewal
        (9.1, 1, 10, True, False),
        (11.1, 30, 10, True, True),  # several renewals per cycle
    ],
)
def test_when_a_lease_is_renewed(
    age_s: float, interval_s: float, renew_s: float, in_cycle: bool, on_watch: bool
) -> None:
    options = ProcessorOptions(interval_s=interval_s, renew_s=renew_s)
    now_s = HELD.renewal_sent_s + age_s
    assert due_in_cycle(HELD, now_s, options) is in_cycle
    assert due_on_watch(HELD, now_s, options) is on_watch
    doubtful = replace(HELD, doubtful=True)
    assert not due_in_cycle(doubtful, now_s, options)
    assert not due_on_watch(doubtful, now_s, options)


def test_the_rate_is_smoothed() -> None:
    assert smoothed_rate(None, 50, 10.0) == 5.0
    assert smoothed_rate(5.0, 150, 10.0) == 10.0
    assert smoothed_rate(5.0, 150, 0.0) == 5.0


# -- choosing: one letter per partition, a dot is free, a capital has expired ---------------------


def listing(picture: str, **changes: Ownership) -> Listing:
    rows = []
    for number, letter in enumerate(picture):
        if letter != ".":
            age_s = 99.0 if letter.isupper() else 1.0
            row = Ownership(str(number), letter.lower(), epoch=3, etag=f"e{number}", age_s=age_s)
            rows.append(changes.get(f"p{number}", row))
    return Listing(tuple(rows))


def situation(listing: Listing, partitions: int, **changes: object) -> Situation:
    names = [str(number) for number in range(partitions)]
    census = take_census("m", names, listing, OPTIONS.lease_s)
    plain = Situation(census, listing, frozenset(), frozenset(), (), grabs=False)
    return replace(plain, **changes)  # type: ignore[arg-type]


def written(rows: tuple[Ownership, ...]) -> dict[str, tuple[str, int, str]]:
    return {row.partition: (row.owner, row.epoch, row.successor) for row in rows}


def test_free_partitions_are_claimed_and_held_ones_requested() -> None:
    now = situation(listing(".Aa"), 3, targets=("0", "1", "2"))
    choice = choose(now, OPTIONS, {"0": 8})
    assert written(choice.claims) == {"0": ("m", 9, ""), "1": ("m", 4, "")}
    assert written(choice.nominations) == {"2": ("a", 3, "m")}
    assert choice.nominations[0].deadline_s == OPTIONS.lease_s - 1.0  # its row is a second old
    assert choice.requested == ("0", "1", "2")


@pytest.mark.parametrize(("hand_off_s", "granted_s"), [(None, 29.0), (60.0, 60.0), (12.0, 12.0)])
def test_a_request_does_not_extend_the_lease_of_a_dead_owner(
    hand_off_s: float | None, granted_s: float
) -> None:
    """Found by the simulation: the partition of a crashed host was idle for two leases."""
    options = replace(OPTIONS, hand_off_s=hand_off_s)
    choice = choose(situation(listing("a"), 1, targets=("0",)), options, {})
    assert choice.nominations[0].deadline_s == granted_s


def test_a_requested_row_in_our_name_is_given_away_and_not_claimed_again() -> None:
    """Found by the simulation: a host with an expired lease ignored the request."""
    row = Ownership("0", "m", 3, "e0", age_s=99.0, successor="b", deadline_s=-1.0)
    now = situation(Listing((row,)), 1, targets=("0",))
    choice = choose(now, OPTIONS, {})
    assert choice.claims == ()
    assert written(choice.returns) == {"0": ("b", 4, "")}


def test_a_strategy_that_grabs_claims_held_partitions() -> None:
    choice = choose(situation(listing("a"), 1, targets=("0",), grabs=True), OPTIONS, {})
    assert written(choice.claims) == {"0": ("m", 4, "")}
    assert choice.nominations == ()


def test_a_row_of_an_official_sdk_is_claimed_at_once() -> None:
    """It does not know epochs and hand-overs: a request would only make it leave early."""
    theirs = Ownership("0", "a", epoch=0, etag="e0", age_s=1.0)
    choice = choose(situation(listing("a", p0=theirs), 1, targets=("0",)), OPTIONS, {"0": 8})
    assert written(choice.claims) == {"0": ("m", 9, "")}
    assert choice.nominations == ()


def test_the_row_of_a_legacy_host_is_claimed_at_once() -> None:
    """A legacy host would overwrite a request with its next checkpoint."""
    theirs = Ownership("0", "a", epoch=3, etag="e0", legacy=True)
    choice = choose(situation(listing("a", p0=theirs), 1, targets=("0",)), OPTIONS, {})
    assert written(choice.claims) == {"0": ("m", 4, "")}
    assert choice.nominations == ()


@pytest.mark.parametrize(
    ("age_s", "checkpoint_epoch", "claimed"),
    [
        (1.0, 8, ()),  # it took the row, our reader refused it, and it will retry
        (OPTIONS.lease_s, 8, ("0",)),  # it did not retry
        (1.0, 0, ("0",)),  # it has read the partition: the checkpoint is its own
    ],
)
def test_a_partition_that_an_official_sdk_retries_is_left_to_it(
    age_s: float, checkpoint_epoch: int, claimed: tuple[str, ...]
) -> None:
    row = Ownership("0", "", epoch=0, etag="e0", age_s=age_s)
    now = situation(listing("a", p0=row), 1, targets=("0",), grabs=True)
    assert choose(now, OPTIONS, {"0": checkpoint_epoch}).requested == claimed


def test_the_claims_of_a_fixed_host_are_pinned() -> None:
    choice = choose(situation(listing("."), 1, targets=("0",), pins=True), OPTIONS, {})
    assert choice.claims[0].pinned
    assert not choose(situation(listing("."), 1, targets=("0",)), OPTIONS, {}).claims[0].pinned


def test_held_and_busy_partitions_are_not_claimed() -> None:
    now = situation(listing("..."), 3, targets=("0", "1", "2"), held={"0"}, busy={"1"})
    assert choose(now, OPTIONS, {}).requested == ("2",)


def test_an_overdue_handover_is_claimed() -> None:
    late = aged(nominate(Ownership("0", "a", 3, "e0"), "m", 20.0), 21.0)
    choice = choose(situation(listing("a", p0=late), 1), OPTIONS, {})
    assert written(choice.claims) == {"0": ("m", 4, "")}


def test_a_handover_within_its_deadline_is_awaited() -> None:
    soon = aged(nominate(Ownership("0", "a", 3, "e0"), "m", 20.0), 19.0)
    choice = choose(situation(listing("a", p0=soon), 1, targets=()), OPTIONS, {})
    assert choice == type(choice)()


def test_stray_rows_are_claimed_or_given_away() -> None:
    requested = nominate(Ownership("2", "m", 3, "e2"), "b", 20.0)
    now = situation(listing("mMmm", p2=requested), 4, held={"3"})
    choice = choose(now, OPTIONS, {})
    assert written(choice.claims) == {"0": ("m", 4, ""), "1": ("m", 4, "")}
    assert written(choice.returns) == {"2": ("b", 4, "")}


def test_stray_rows_are_claimed_up_to_the_limit() -> None:
    choice = choose(situation(listing("mmm"), 3), replace(OPTIONS, max_partitions=1), {})
    assert written(choice.claims) == {"0": ("m", 4, "")}
    assert written(choice.returns) == {"1": ("", 3, ""), "2": ("", 3, "")}


@pytest.mark.parametrize(("epoch", "needed"), [(0, True), (3, False)])
def test_checkpoints_are_read_only_if_a_row_has_no_epoch(epoch: int, needed: bool) -> None:
    row = Ownership("0", "a", epoch, "e0", age_s=99.0)
    assert needs_checkpoint_epochs(situation(listing("a", p0=row), 1, targets=("0",))) is needed
    assert not needs_checkpoint_epochs(situation(listing("a", p0=row), 1))


# -- positions, pumps, delays ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "offset", "position"),
    [
        (None, None, EARLIEST),
        (0, None, Position("sequence", "0")),  # zero is a position
        (0, "0", Position("offset", "0")),
        (None, "17", Position("offset", "17")),
    ],
)
def test_the_position_where_reading_starts(
    sequence: int | None, offset: str | None, position: Position
) -> None:
    checkpoint = Checkpoint(Group("n", "h"), "0", sequence, offset, epoch=1)
    assert start_position(checkpoint, EARLIEST) == position


def test_owned_partitions_without_a_pump_are_started() -> None:
    assert pumps_to_start({"1", "2", "3"}, {"3", "4"}) == ["1", "2"]


def test_back_off_doubles_up_to_a_limit() -> None:
    delays = [backoff(failures, OPTIONS, Random(1)) for failures in (1, 2, 3, 100)]
    assert 0.45 <= delays[0] <= 0.5
    assert 0.9 <= delays[1] <= 1.0
    assert 1.8 <= delays[2] <= 2.0
    assert 27 <= delays[3] <= 30


@pytest.mark.parametrize(
    ("came", "least_s", "most_s"),
    [
        (Outcome(0.0), 9.0, 10.0),
        (Outcome(4.0), 5.0, 6.0),
        (Outcome(12.0), RERUN_S, RERUN_S),  # it took longer than the interval
        (Outcome(0.0, joined=False), 0.9, 1.0),
        (Outcome(0.0, waiting=True), 0.9, 1.0),
        (Outcome(0.0, hurries=True), RERUN_S, RERUN_S),
    ],
)
def test_the_delay_of_the_next_cycle(came: Outcome, least_s: float, most_s: float) -> None:
    for seed in range(20):
        assert least_s <= next_delay(came, OPTIONS, Random(seed)) <= most_s


def test_a_lease_without_a_successor_has_no_deadline() -> None:
    assert Lease(MINE, 1.0, 1.0, 1.0).deadline_s == math.inf


# -- checkpoints of the policy --------------------------------------------------------------------


def event(sequence: int) -> Event:
    return Event(b"x", sequence=sequence)


@pytest.mark.parametrize(
    ("policy", "now_s", "expected"),
    [
        (CheckpointPolicy(), 1e9, float("inf")),
        (CheckpointPolicy(every_events=3), 100.0, 0.0),
        (CheckpointPolicy(every_events=4), 1e9, float("inf")),
        (CheckpointPolicy(every_s=5.0), 103.0, 2.0),
        (CheckpointPolicy(every_s=5.0), 109.0, 0.0),
        (CheckpointPolicy(every_events=4, every_s=5.0), 103.0, 2.0),
        (CheckpointPolicy(every_events=3, every_s=5.0), 101.0, 0.0),
    ],
)
def test_when_a_checkpoint_is_due(policy: CheckpointPolicy, now_s: float, expected: float) -> None:
    pending = add_pending(add_pending(None, [event(0), event(1)], 100.0), [event(2)], 102.0)
    assert pending == Pending(event(2), 3, 100.0)
    assert checkpoint_due_in(policy, pending, now_s) == expected
    assert checkpoint_due_in(policy, None, now_s) == float("inf")


def test_an_event_that_was_not_read_cannot_be_checkpointed() -> None:
    assert sequence_of(event(0)) == 0
    with pytest.raises(OptionError):
        sequence_of(Event(b"x"))
