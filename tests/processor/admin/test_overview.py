"""The overview of a consumer group: every status, lag and totals."""

from dataclasses import replace

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.leases.model import Checkpoint, Group, Listing, Member, Ownership
from pumphouse.processor.admin.overview import (
    AHEAD,
    BEHIND,
    IDLE,
    LOST,
    MEANING,
    MOVING,
    NO_OWNER,
    OK,
    PAUSED,
    STOPPED,
    STUCK,
    UNREAD,
    Overview,
    overview,
)

GROUP = Group("hub.example", "sensors")
LEASE_S = 30.0


def partition(first: int = 0, last: int = 99, name: str = "0") -> PartitionProperties:
    return PartitionProperties("sensors", name, first, last, str(last * 10), 60_000, last < first)


def row(
    owner: str = "a", age_s: float = 5.0, name: str = "0", successor: str = "", state: str = ""
) -> Ownership:
    return Ownership(name, owner, epoch=4, etag="x", age_s=age_s, successor=successor, state=state)


def checkpoint_at(
    sequence: int | None, name: str = "0", enqueued_ms: int | None = None
) -> Checkpoint:
    offset = None if sequence is None else str(sequence * 10)
    return Checkpoint(GROUP, name, sequence, offset, epoch=4, enqueued_ms=enqueued_ms)


def overview_of(
    properties: PartitionProperties,
    owned: Ownership | None,
    checkpoint: Checkpoint | None,
    before: Overview | None = None,
) -> Overview:
    listing = Listing((owned,) if owned else ())
    checkpoints = [checkpoint] if checkpoint else []
    return overview("$Default", "sensors", [properties], listing, checkpoints, LEASE_S, before)


@pytest.mark.parametrize(
    ("properties", "owned", "checkpoint", "status"),
    [
        (partition(), row(), checkpoint_at(99), OK),
        (partition(), row(), checkpoint_at(50), OK),  # growth of lag needs two overviews
        (partition(0, -1), row(), None, IDLE),
        (partition(), row(), None, UNREAD),
        (partition(), row(), checkpoint_at(None), UNREAD),  # a stamp without a position
        (partition(), row(successor="b"), checkpoint_at(50), MOVING),
        (partition(), None, checkpoint_at(50), NO_OWNER),
        (partition(), row(""), checkpoint_at(50), NO_OWNER),  # released
        (partition(), row(age_s=30.0), checkpoint_at(50), NO_OWNER),  # expired
        (partition(first=60), row(), checkpoint_at(58), LOST),
        (partition(first=60), row(), checkpoint_at(59), OK),  # the next event is the oldest
        (partition(), row(), checkpoint_at(100), AHEAD),
        (partition(), None, checkpoint_at(100), AHEAD),  # worse than having no owner
        (partition(), row(state="stopped"), checkpoint_at(50), STOPPED),
        (partition(), row(state="stopped"), None, STOPPED),  # its first event cannot be handled
        (partition(), row(state="resume"), checkpoint_at(50), STOPPED),  # the owner has not read it
        (partition(), row(state="stuck"), checkpoint_at(50), STUCK),
        (partition(), row(state="stuck", successor="b"), checkpoint_at(50), STUCK),
        (partition(), row(state="behind"), checkpoint_at(50), BEHIND),
        (partition(), row(state="behind"), checkpoint_at(99), OK),  # it has caught up since
        (partition(), row(state="paused"), checkpoint_at(50), PAUSED),
        (partition(), row(state="stopped", age_s=30.0), checkpoint_at(50), NO_OWNER),
    ],
)
def test_the_verdict_of_one_overview(
    properties: PartitionProperties,
    owned: Ownership | None,
    checkpoint: Checkpoint | None,
    status: str,
) -> None:
    assert overview_of(properties, owned, checkpoint).lines[0].status == status
    assert status in MEANING


@pytest.mark.parametrize(
    ("was", "last", "now", "status"),
    [
        (50, 99, 50, STUCK),  # a lag, and the same checkpoint
        (50, 200, 90, BEHIND),  # the lag grew from 49 to 110
        (50, 120, 90, OK),  # catching up
        (99, 200, 99, OK),  # there was no lag before: the events may have just arrived
        (50, 99, 99, OK),
    ],
)
def test_the_verdict_compared_with_the_overview_before(
    was: int, last: int, now: int, status: str
) -> None:
    before = overview_of(partition(), row(), checkpoint_at(was))
    assert (
        overview_of(partition(last=last), row(), checkpoint_at(now), before).lines[0].status
        == status
    )


def test_lag_in_events_and_seconds() -> None:
    line = overview_of(partition(), row(), checkpoint_at(89, enqueued_ms=55_500)).lines[0]
    assert (line.lag, line.lag_s) == (10, 4.5)
    line = overview_of(partition(), row(), checkpoint_at(99, enqueued_ms=55_500)).lines[0]
    assert (line.lag, line.lag_s) == (0, 0.0)  # no lag, however old the newest event is
    line = overview_of(partition(first=40), row(), None).lines[0]
    assert (line.lag, line.lag_s) == (60, None)  # all events of the log


def test_a_checkpoint_with_only_an_offset_has_no_lag() -> None:
    known = replace(checkpoint_at(50), sequence=None)
    assert overview_of(partition(), row(), known).lines[0].lag is None
    at_end = replace(known, offset="990")
    assert overview_of(partition(), row(), at_end).lines[0].lag == 0


def test_the_remaining_time_of_a_lease() -> None:
    assert overview_of(partition(), row(age_s=8), None).lines[0].lease_left_s == 22
    assert overview_of(partition(), row(age_s=34), None).lines[0].lease_left_s == -4
    assert overview_of(partition(), row(""), None).lines[0].lease_left_s is None


@pytest.mark.parametrize(
    ("fleet", "waiting", "state", "shares"),
    [
        ("aabb", "", "stable", (2, 2)),
        ("aaab", "", "uneven", (1, 3)),
        ("aab", "", "stable", (1, 2)),
        ("aa.b", "", "moving", (1, 2)),
        ("....", "", "unowned", (0, 0)),
        ("aa", "b", "uneven", (0, 2)),  # b has joined and owns nothing yet
    ],
)
def test_the_state_of_a_fleet(
    fleet: str, waiting: str, state: str, shares: tuple[int, int]
) -> None:
    names = [str(number) for number in range(len(fleet))]
    rows = [row(owner, name=name) for name, owner in zip(names, fleet, strict=True) if owner != "."]
    listing = Listing(tuple(rows), tuple(Member(name) for name in waiting))
    properties = overview(
        "$Default", "sensors", [partition(name=name) for name in names], listing, [], LEASE_S
    )
    assert (properties.state, properties.shares()) == (state, shares)


def test_partitions_are_sorted_by_number() -> None:
    names = ["10", "9", "0"]
    properties = overview(
        "g", "h", [partition(name=name) for name in names], Listing(), [], LEASE_S
    )
    assert [line.partition for line in properties.lines] == ["0", "9", "10"]


def test_totals() -> None:
    checkpoints = [checkpoint_at(89, "0", 58_000), checkpoint_at(79, "1", 50_000)]
    properties = overview(
        "g", "h", [partition(), partition(name="1")], Listing(), checkpoints, LEASE_S
    )
    assert (properties.lag, properties.lag_max, properties.lag_s_max) == (30, 20, 10.0)


@pytest.mark.parametrize("state", ["stopped", "stuck"])
def test_a_group_with_a_stopped_or_stuck_partition_is_not_stable(state: str) -> None:
    rows = (row(name="0"), row(name="1", state=state))
    partitions = [partition(name="0"), partition(name="1")]
    checkpoints = [checkpoint_at(99, "0"), checkpoint_at(50, "1")]
    seen = overview("$Default", "sensors", partitions, Listing(rows), checkpoints, LEASE_S)
    assert seen.state == state
    assert [line.bad for line in seen.lines] == [False, True]
