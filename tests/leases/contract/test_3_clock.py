"""Clause 3: ages and deadlines are durations by the clock of whatever keeps the rows.

Bounds are taken from the test's own reading of that clock, before and after, so that a slow machine
changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import TypeVar

from pumphouse.leases.model import (
    Ownership,
    aged,
    claim,
    confirm,
    hand_over,
    nominate,
    release,
    renew,
)
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import first, granted, members, rows
from tests.leases.contract.stores import GROUP, Place

T = TypeVar("T")


async def timed(place: Place, doing: Awaitable[T]) -> tuple[T, float, float]:
    """What came of it, and between which two moments it was done."""
    before = place.now()
    result = await doing
    return result, before, place.now()


async def bounds(
    place: Place, write: Awaitable[object], read: Callable[[], Awaitable[T]], passing_s: float
) -> tuple[T, float, float]:
    """Write, let time pass, read: what was read, and the least and the most that has passed."""
    _, wrote_from, wrote_to = await timed(place, write)
    await place.pass_time(passing_s)
    found, read_from, read_to = await timed(place, read())
    slack = place.resolution_s
    return found, read_from - wrote_to - slack, read_to - wrote_from + slack


async def test_a_row_ages_until_it_is_written_again(place: Place, store: CheckpointStore) -> None:
    async def listed() -> Ownership:
        return (await rows(store))["0"]

    row, least, most = await bounds(place, first(store), listed, place.tick_s)
    assert least <= row.age_s <= (most if place.ages else inf)
    assert row.age_s >= place.tick_s - place.resolution_s
    row, least, most = await bounds(place, granted(store, renew(row)), listed, 0)
    assert least <= row.age_s <= most
    assert row.age_s >= 0


async def test_the_age_in_a_write_is_ignored(place: Place, store: CheckpointStore) -> None:
    row = await first(store)

    async def listed() -> Ownership:
        return (await rows(store))["0"]

    wanted = replace(renew(row), age_s=1e6)
    found, least, most = await bounds(place, granted(store, wanted), listed, 0)
    assert max(0, least) <= found.age_s <= most


async def test_every_handle_sees_the_same_age(place: Place, stores: list[CheckpointStore]) -> None:
    await first(stores[0])
    await place.pass_time(place.tick_s)
    for store in stores:
        now = place.now()
        row = (await rows(store))["0"]
        assert row.age_s >= place.tick_s - place.resolution_s
        if place.ages:
            assert row.age_s <= place.tick_s + 3600 + (place.now() - now)


async def test_a_deadline_counts_from_its_write(place: Place, store: CheckpointStore) -> None:
    row = await first(store, host="a")
    await place.pass_time(place.tick_s)

    async def listed() -> Ownership:
        return (await rows(store))["0"]

    asked = granted(store, nominate(row, "b", 2 * place.tick_s))
    found, least, most = await bounds(place, asked, listed, place.tick_s)
    assert found.successor == "b"
    assert found.deadline_s is not None
    assert 2 * place.tick_s - most <= found.deadline_s <= 2 * place.tick_s - least
    assert found.overdue == (found.deadline_s <= 0)


async def test_a_deadline_passes(place: Place, store: CheckpointStore) -> None:
    row = await granted(store, nominate(await first(store, host="a"), "b", place.tick_s / 2))
    assert not row.overdue
    await place.pass_time(place.tick_s)
    listed = (await rows(store))["0"]
    assert listed.overdue
    assert listed.deadline_s is not None
    assert listed.deadline_s <= place.resolution_s - place.tick_s / 2
    await granted(store, claim(listed, "0", "b"))


async def test_a_renewal_keeps_the_deadline(place: Place, store: CheckpointStore) -> None:
    """A row kept for a while and renewed `aged` falls due when it would have without."""
    row = await granted(store, nominate(await first(store, host="a"), "b", 2 * place.tick_s))
    since = place.now()
    await place.pass_time(place.tick_s)
    row = await granted(store, renew(aged(row, place.now() - since)))
    await place.pass_time(place.tick_s)
    listed = (await rows(store))["0"]
    assert listed.successor == "b"
    assert listed.deadline_s is not None
    assert listed.deadline_s <= place.resolution_s
    assert listed.age_s >= place.tick_s - place.resolution_s


async def test_a_handed_over_row_has_a_confirmation_deadline(
    place: Place, store: CheckpointStore
) -> None:
    row = await granted(store, nominate(await first(store, host="a"), "b", 9 * place.tick_s))
    await granted(store, hand_over(row, place.tick_s / 2))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.successor, listed.unconfirmed) == ("b", "", True)
    await place.pass_time(place.tick_s)
    listed = (await rows(store))["0"]
    assert listed.overdue
    await granted(store, confirm(listed))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.unconfirmed, listed.deadline_s) == ("b", False, None)


async def test_a_claim_after_a_nomination_has_no_deadline(store: CheckpointStore) -> None:
    for follow in (hand_over, release):
        row = await first(store, follow.__name__, "a")
        row = await granted(store, nominate(row, "b", 30.0))
        await granted(store, follow(row))
        listed = (await rows(store))[follow.__name__]
        assert (listed.successor, listed.deadline_s, listed.overdue) == ("", None, False)


async def test_a_member_ages_since_its_beat(place: Place, store: CheckpointStore) -> None:
    async def beaten() -> float:
        return (await members(store))["host-a"].age_s

    for _ in range(2):
        age_s, least, most = await bounds(place, store.beat(GROUP, "host-a"), beaten, place.tick_s)
        assert least <= age_s <= most
        assert age_s >= place.tick_s - place.resolution_s
    age_s, least, most = await bounds(place, store.beat(GROUP, "host-a"), beaten, 0)
    assert max(0, least) <= age_s <= most
