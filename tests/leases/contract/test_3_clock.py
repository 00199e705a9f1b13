"""Clause 3: ages and deadlines are durations by the clock of the backend.

The tests read that clock before and after each call, and derive the bounds of an age from these
times. So a slow machine changes nothing.
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
from tests.leases.contract.stores import GROUP, StoreBackend

T = TypeVar("T")


async def timed(backend: StoreBackend, call: Awaitable[T]) -> tuple[T, float, float]:
    """The result, and the times before and after."""
    before = backend.now()
    result = await call
    return result, before, backend.now()


async def bounds(
    backend: StoreBackend,
    write: Awaitable[object],
    read: Callable[[], Awaitable[T]],
    passing_s: float,
) -> tuple[T, float, float]:
    """Write, let time pass, read: the result, and the bounds of the time that has passed."""
    _, wrote_from, wrote_to = await timed(backend, write)
    await backend.pass_time(passing_s)
    read_back, read_from, read_to = await timed(backend, read())
    slack = backend.resolution_s
    return read_back, read_from - wrote_to - slack, read_to - wrote_from + slack


async def test_a_row_ages_until_it_is_written_again(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    async def listed() -> Ownership:
        return (await rows(store))["0"]

    row, least, most = await bounds(backend, first(store), listed, backend.tick_s)
    assert least <= row.age_s <= (most if backend.ages else inf)
    assert row.age_s >= backend.tick_s - backend.resolution_s
    row, least, most = await bounds(backend, granted(store, renew(row)), listed, 0)
    assert least <= row.age_s <= most
    assert row.age_s >= 0


async def test_the_age_in_a_write_is_ignored(backend: StoreBackend, store: CheckpointStore) -> None:
    row = await first(store)

    async def listed() -> Ownership:
        return (await rows(store))["0"]

    requested = replace(renew(row), age_s=1e6)
    read_back, least, most = await bounds(backend, granted(store, requested), listed, 0)
    assert max(0, least) <= read_back.age_s <= most


async def test_every_handle_sees_the_same_age(
    backend: StoreBackend, stores: list[CheckpointStore]
) -> None:
    await first(stores[0])
    await backend.pass_time(backend.tick_s)
    for store in stores:
        now = backend.now()
        row = (await rows(store))["0"]
        assert row.age_s >= backend.tick_s - backend.resolution_s
        if backend.ages:
            assert row.age_s <= backend.tick_s + 3600 + (backend.now() - now)


async def test_a_deadline_counts_from_its_write(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    row = await first(store, host="a")
    await backend.pass_time(backend.tick_s)

    async def listed() -> Ownership:
        return (await rows(store))["0"]

    nominated = granted(store, nominate(row, "b", 2 * backend.tick_s))
    read_back, least, most = await bounds(backend, nominated, listed, backend.tick_s)
    assert read_back.successor == "b"
    assert read_back.deadline_s is not None
    assert 2 * backend.tick_s - most <= read_back.deadline_s <= 2 * backend.tick_s - least
    assert read_back.overdue == (read_back.deadline_s <= 0)


async def test_a_deadline_passes(backend: StoreBackend, store: CheckpointStore) -> None:
    row = await granted(store, nominate(await first(store, host="a"), "b", backend.tick_s / 2))
    assert not row.overdue
    await backend.pass_time(backend.tick_s)
    listed = (await rows(store))["0"]
    assert listed.overdue
    assert listed.deadline_s is not None
    assert listed.deadline_s <= backend.resolution_s - backend.tick_s / 2
    await granted(store, claim(listed, "0", "b"))


async def test_a_renewal_keeps_the_deadline(backend: StoreBackend, store: CheckpointStore) -> None:
    """A renewal of an `aged` row keeps the deadline."""
    row = await granted(store, nominate(await first(store, host="a"), "b", 2 * backend.tick_s))
    since = backend.now()
    await backend.pass_time(backend.tick_s)
    row = await granted(store, renew(aged(row, backend.now() - since)))
    await backend.pass_time(backend.tick_s)
    listed = (await rows(store))["0"]
    assert listed.successor == "b"
    assert listed.deadline_s is not None
    assert listed.deadline_s <= backend.resolution_s
    assert listed.age_s >= backend.tick_s - backend.resolution_s


async def test_a_handed_over_row_has_a_confirmation_deadline(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    row = await granted(store, nominate(await first(store, host="a"), "b", 9 * backend.tick_s))
    await granted(store, hand_over(row, backend.tick_s / 2))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.successor, listed.unconfirmed) == ("b", "", True)
    await backend.pass_time(backend.tick_s)
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


async def test_a_member_ages_since_its_beat(backend: StoreBackend, store: CheckpointStore) -> None:
    async def member_age_s() -> float:
        return (await members(store))["host-a"].age_s

    for _ in range(2):
        age_s, least, most = await bounds(
            backend, store.beat(GROUP, "host-a"), member_age_s, backend.tick_s
        )
        assert least <= age_s <= most
        assert age_s >= backend.tick_s - backend.resolution_s
    age_s, least, most = await bounds(backend, store.beat(GROUP, "host-a"), member_age_s, 0)
    assert max(0, least) <= age_s <= most
