"""Clause 1: a row or checkpoint is written only over the one with the given etag."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.leases.model import (
    STATES,
    STOPPED,
    Checkpoint,
    Granted,
    Ownership,
    Refused,
    advance,
    claim,
    hand_over,
    nominate,
    raise_epoch,
    release,
    renew,
    request_resume,
    stamp,
)
from pumphouse.leases.store import CheckpointStore, ClaimOutcome
from tests.leases.contract.calls import (
    checkpoint_of,
    checkpoints,
    first,
    granted,
    kept,
    refused,
    row_of,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP


async def test_a_new_store_is_empty(store: CheckpointStore) -> None:
    listing = await store.list_ownership(GROUP)
    assert listing.ownerships == ()
    assert listing.members == ()
    assert await store.list_checkpoints(GROUP) == []


async def test_the_first_claim_needs_no_etag_and_gets_one(store: CheckpointStore) -> None:
    row = await first(store)
    assert row.etag
    assert (row.owner, row.epoch, row.age_s) == ("a", 1, 0.0)
    assert kept((await rows(store))["0"]) == kept(row)


async def test_a_second_first_claim_is_refused(store: CheckpointStore) -> None:
    await first(store)
    await refused(store, claim(None, "0", "b"))
    assert (await rows(store))["0"].owner == "a"


async def test_an_etag_of_no_row_is_refused(store: CheckpointStore) -> None:
    row = await first(store, "0")
    await refused(store, replace(row, partition="1"))
    assert list(await rows(store)) == ["0"]


async def test_every_granted_write_changes_the_etag(store: CheckpointStore) -> None:
    row = await first(store)
    seen = {row.etag}
    for _ in range(5):
        row = await granted(store, renew(row))  # exactly the same row
        assert row.etag not in seen
        assert (await rows(store))["0"].etag == row.etag
        seen.add(row.etag)


async def test_an_etag_is_accepted_once(store: CheckpointStore) -> None:
    row = await first(store)
    newer = await granted(store, renew(row))
    await refused(store, renew(row))
    await refused(store, release(row))
    assert kept((await rows(store))["0"]) == kept(newer)


async def test_a_listed_etag_is_accepted(store: CheckpointStore) -> None:
    await first(store)
    row = await granted(store, renew((await rows(store))["0"]))
    await granted(store, renew((await rows(store))["0"]))
    await refused(store, renew(row))


async def test_a_refusal_has_the_current_row_or_none(store: CheckpointStore) -> None:
    row = await first(store)
    newer = await granted(store, renew(row, 3.0))
    outcome = await write(store, renew(row))
    assert isinstance(outcome, Refused)
    assert outcome.current is None or kept(outcome.current) == kept(newer)


async def test_a_row_passes_through_all_its_states(store: CheckpointStore) -> None:
    """Every way in which one row may follow another."""
    row = await first(store, host="a")
    row = await granted(store, renew(row, rate=12.5))
    row = await granted(store, nominate(row, "b", 30.0))
    row = await granted(store, renew(row, rate=13.5))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.successor, listed.epoch, listed.rate) == ("a", "b", 1, 13.5)
    row = await granted(store, hand_over(row))
    row = await granted(store, raise_epoch(row, 9))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.successor, listed.epoch) == ("b", "", 10)
    assert listed.deadline_s is None
    assert listed.rate is None
    row = await granted(store, release(row))
    row = await granted(store, claim(row, "0", "c", pinned=True))
    assert ((await rows(store))["0"].owner, row.epoch) == ("c", 11)
    row = await granted(store, renew(row))
    assert (await rows(store))["0"].pinned
    await granted(store, release(row))
    assert not (await rows(store))["0"].pinned


@pytest.mark.parametrize("state", STATES)
async def test_a_state_is_kept_until_the_next_renewal_or_owner(
    store: CheckpointStore, state: str
) -> None:
    row = await granted(store, renew(await first(store), 1.5, state))
    row = await granted(store, nominate(row, "b", 30))
    assert (await rows(store))["0"].state == state
    row = await granted(store, renew(row))
    assert (await rows(store))["0"].state == ""
    await granted(store, hand_over(await granted(store, renew(row, state=state))))
    assert (await rows(store))["0"].state == ""


async def test_an_operator_asks_the_owner_to_resume(stores: list[CheckpointStore]) -> None:
    """The owner learns of it by its next renewal, and keeps its lease and its epoch."""
    owner, operator = stores[:2]
    row = await granted(owner, renew(await first(owner), state=STOPPED))
    listed = (await rows(operator))["0"]
    await granted(operator, request_resume(listed))
    await refused(owner, renew(row))
    listed = (await rows(owner))["0"]
    assert (listed.owner, listed.epoch, listed.state) == ("a", row.epoch, "resume")
    await granted(owner, renew(listed))
    assert (await rows(owner))["0"].state == ""


async def test_of_many_first_claims_one_is_granted(stores: list[CheckpointStore]) -> None:
    requested = [claim(None, "0", f"host-{n}") for n in range(len(stores))]
    outcomes = await asyncio.gather(*map(write, stores, requested))
    await one_won(stores, requested, outcomes)


@pytest.mark.parametrize("turn", range(5))
async def test_of_many_claims_over_one_row_one_is_granted(
    stores: list[CheckpointStore], turn: int
) -> None:
    row = await first(stores[turn])
    listed = [(await rows(store))["0"] for store in stores]
    assert {each.etag for each in listed} == {row.etag}
    requested = [claim(each, "0", f"host-{n}") for n, each in enumerate(listed)]
    outcomes = await asyncio.gather(*map(write, stores, requested))
    await one_won(stores, requested, outcomes)


async def one_won(
    stores: list[CheckpointStore], requested: list[Ownership], outcomes: list[ClaimOutcome]
) -> None:
    winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Granted)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert len(winners) == 1
    assert len(losers) == len(stores) - 1
    for store in stores:
        row = (await rows(store))["0"]
        assert (row.owner, row.epoch) == (requested[winners[0]].owner, requested[winners[0]].epoch)


async def test_a_race_never_loses_an_epoch(stores: list[CheckpointStore]) -> None:
    """All hosts claim the row repeatedly: each grant is one epoch, none is lost or shared."""
    wins: list[int] = []

    async def play(store: CheckpointStore, host: str) -> None:
        for _ in range(6):
            row = (await rows(store)).get("0")
            outcome = await write(store, claim(row, "0", host))
            if isinstance(outcome, Granted):
                wins.append(outcome.row.epoch)

    await asyncio.gather(*(play(store, f"host-{n}") for n, store in enumerate(stores)))
    assert sorted(wins) == list(range(1, len(wins) + 1))
    assert (await rows(stores[0]))["0"].epoch == len(wins)


# -- checkpoints ----------------------------------------------------------------------------------

STAMP = stamp(None, GROUP, "0", 1)


async def test_a_checkpoint_is_written_over_its_etag_only(store: CheckpointStore) -> None:
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(STAMP))
    newer = checkpoint_of(
        await store.update_checkpoint(advance(stored_checkpoint, 7, "700", 1_000))
    )
    assert len({"", stored_checkpoint.etag, newer.etag}) == 3
    for late in (STAMP, advance(stored_checkpoint, 9, "900"), replace(newer, partition="1")):
        outcome = await store.update_checkpoint(late)
        assert isinstance(outcome, Refused)
        assert outcome.requested == late
        assert outcome.current in (None, newer)
    assert await checkpoints(store) == {"0": newer}


async def test_a_checkpoint_comes_back_as_it_was_written(store: CheckpointStore) -> None:
    requested = [
        Checkpoint(GROUP, "0", 7, "700", 3, enqueued_ms=1_700_000_000_123),
        Checkpoint(GROUP, "1", 0, "0", 1),
        Checkpoint(GROUP, "2", 7, None, 3),
        Checkpoint(GROUP, "3", None, "a:geo:offset", 3),
        Checkpoint(GROUP, "4", None, None, 3),
        Checkpoint(GROUP, "5", 2**62, str(2**62), 2**40),
        Checkpoint(GROUP, "6", -1, "-1", 1),
    ]
    written = [
        checkpoint_of(await store.update_checkpoint(stored_checkpoint))
        for stored_checkpoint in requested
    ]
    assert [replace(stored_checkpoint, etag="") for stored_checkpoint in written] == requested
    assert await checkpoints(store) == {
        stored_checkpoint.partition: stored_checkpoint for stored_checkpoint in written
    }


async def test_of_many_checkpoints_one_is_granted(stores: list[CheckpointStore]) -> None:
    stored_checkpoint = checkpoint_of(await stores[0].update_checkpoint(STAMP))
    requested = [stamp(stored_checkpoint, GROUP, "0", 2 + n) for n in range(len(stores))]
    outcomes = await asyncio.gather(
        *(store.update_checkpoint(each) for store, each in zip(stores, requested, strict=True))
    )
    winners = [outcome.row for outcome in outcomes if isinstance(outcome, Granted)]
    assert len(winners) == 1
    assert [await checkpoints(store) for store in stores] == [{"0": winners[0]}] * len(stores)


async def test_rows_and_checkpoints_are_independent(store: CheckpointStore) -> None:
    """A write of one does not change the etag of the other."""
    row = await first(store)
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(STAMP))
    row = await granted(store, renew(row))
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(advance(stored_checkpoint, 1, "1"))
    )
    assert kept((await rows(store))["0"]) == kept(row)
    assert await checkpoints(store) == {"0": stored_checkpoint}


async def test_one_call_writes_many_rows(store: CheckpointStore) -> None:
    requested = [claim(None, str(n), "a") for n in range(20)]
    outcomes = await store.claim_ownership(GROUP, requested)
    written = [row_of(outcome) for outcome in outcomes]
    assert [row.partition for row in written] == [row.partition for row in requested]
    assert len({row.etag for row in written} | {""}) >= 2
    read_back = await rows(store)
    assert {p: kept(row) for p, row in read_back.items()} == {r.partition: kept(r) for r in written}


async def test_a_call_without_claims_has_no_outcomes(store: CheckpointStore) -> None:
    assert await store.claim_ownership(GROUP, []) == []
