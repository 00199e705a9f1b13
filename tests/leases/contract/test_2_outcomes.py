"""Clause 2: granted, refused, unknown. Unknown is never turned into one of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.leases.model import Granted, Refused, Unknown, advance, claim, renew, stamp
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import (
    checkpoints,
    first,
    granted,
    kept,
    mark_of,
    refused,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP, Place
from tests.leases.flaky_store import Fault, FlakyStore, ScriptedFaults


async def test_outcomes_come_in_the_order_of_the_claims(store: CheckpointStore) -> None:
    """And one claim's outcome says nothing of another's."""
    old = {p: await first(store, p) for p in ("0", "1", "2", "3")}
    for partition in ("1", "3"):
        await granted(store, renew(old[partition]))
    claims = [
        renew(old["3"]),
        claim(None, "9", "a"),
        renew(old["0"]),
        claim(None, "2", "b"),
        renew(old["1"]),
    ]
    outcomes = await store.claim_ownership(GROUP, claims)
    assert [type(outcome) for outcome in outcomes] == [Refused, Granted, Granted, Refused, Refused]
    assert [
        (o.row if isinstance(o, Granted) else o.requested).partition for o in outcomes
    ] == ["3", "9", "0", "2", "1"]  # fmt: skip


async def test_a_write_without_a_response_is_unknown(place: Place, store: CheckpointStore) -> None:
    row = await first(store)
    mark = mark_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    async with place.silent() as silent:
        outcomes = await silent.claim_ownership(GROUP, [renew(row), claim(None, "1", "a")])
        assert [type(outcome) for outcome in outcomes] == [Unknown, Unknown]
        assert [o.requested for o in outcomes if isinstance(o, Unknown)] == [
            renew(row),
            claim(None, "1", "a"),
        ]
        told = await silent.update_checkpoint(advance(mark, 5, "5"))
        assert isinstance(told, Unknown)
        assert told.why


async def test_after_lost_responses_the_rows_show_what_was_written(
    place: Place, store: CheckpointStore
) -> None:
    """Whatever became of the write: the etag says so, and a repeated call never writes twice."""
    row = await first(store)
    async with place.silent() as silent:
        assert isinstance(await write(silent, claim(row, "0", "b")), Unknown)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) in {("a", 1), ("b", 2)}
    assert (listed.etag == row.etag) == (listed.owner == "a")
    again = await write(store, claim(row, "0", "b"))
    assert isinstance(again, Granted if listed.owner == "a" else Refused)
    assert (await rows(store))["0"].epoch == 2


@pytest.mark.parametrize("mishap", ["before", "after"])
async def test_a_claim_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, mishap: Fault
) -> None:
    """The same call again: granted if it had not been written, refused if it had, never both."""
    row = await first(store)
    flaky = FlakyStore(store, ScriptedFaults([mishap]))
    wanted = claim(row, "0", "b")
    assert isinstance(await write(flaky, wanted), Unknown)
    arrived = (await rows(store))["0"].owner == "b"
    assert arrived == (mishap == "after")
    again = await write(flaky, wanted)
    assert isinstance(again, Refused if arrived else Granted)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) == ("b", 2)
    await granted(store, renew(listed))


@pytest.mark.parametrize("mishap", ["before", "after"])
async def test_a_first_claim_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, mishap: Fault
) -> None:
    flaky = FlakyStore(store, ScriptedFaults([mishap]))
    assert isinstance(await write(flaky, claim(None, "0", "a")), Unknown)
    again = await write(flaky, claim(None, "0", "a"))
    assert isinstance(again, Refused if mishap == "after" else Granted)
    assert {p: row.owner for p, row in (await rows(store)).items()} == {"0": "a"}


@pytest.mark.parametrize("mishap", ["before", "after"])
async def test_a_checkpoint_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, mishap: Fault
) -> None:
    mark = mark_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    flaky = FlakyStore(store, ScriptedFaults([mishap]))
    wanted = advance(mark, 5, "500")
    assert isinstance(await flaky.update_checkpoint(wanted), Unknown)
    found = (await checkpoints(store))["0"]
    assert (found == mark) == (mishap == "before")
    again = await flaky.update_checkpoint(wanted)
    assert isinstance(again, Granted if mishap == "before" else Refused)
    assert replace((await checkpoints(store))["0"], etag="") == replace(wanted, etag="")


async def test_one_lost_response_leaves_the_other_outcomes(store: CheckpointStore) -> None:
    flaky = FlakyStore(store, ScriptedFaults(["", "after", "", "before"]))
    claims = [claim(None, str(n), "a") for n in range(4)]
    outcomes = await flaky.claim_ownership(GROUP, claims)
    assert [type(outcome) for outcome in outcomes] == [Granted, Unknown, Granted, Unknown]
    assert sorted(await rows(store)) == ["0", "1", "2"]


async def test_a_race_with_lost_responses_has_one_winner(stores: list[CheckpointStore]) -> None:
    """At most one is granted, and if somebody was, the row is theirs."""
    mishaps: list[Fault] = ["", "after", "before", "", "after", "before", "", "after"]
    row = await first(stores[0], host="old")
    flaky = [
        FlakyStore(store, ScriptedFaults([m])) for store, m in zip(stores, mishaps, strict=True)
    ]
    wanted = [claim(row, "0", f"host-{n}") for n in range(len(stores))]
    outcomes = await asyncio.gather(*map(write, flaky, wanted))
    owner = (await rows(stores[0]))["0"].owner
    winners = [o.row.owner for o in outcomes if isinstance(o, Granted)]
    assert winners in ([], [owner])
    perhaps = [o.requested.owner for o in outcomes if isinstance(o, Unknown)]
    assert owner in winners + perhaps


async def test_a_refused_write_changes_nothing(store: CheckpointStore) -> None:
    row = await first(store)
    newer = await granted(store, renew(row, 4.0))
    before = (await rows(store))["0"]
    await refused(store, replace(claim(row, "0", "thief"), rate=9.0))
    assert kept((await rows(store))["0"]) == kept(before) == kept(newer)
