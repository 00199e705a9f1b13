"""Clause 2: granted, refused, unknown. Unknown is never turned into one of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pumphouse.leases.flaky_store import Fault, FlakyStore, ScriptedFaults
from pumphouse.leases.model import Granted, Refused, Unknown, advance, claim, renew, stamp
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import (
    checkpoint_of,
    checkpoints,
    first,
    granted,
    kept,
    refused,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP, StoreBackend


async def test_outcomes_come_in_the_order_of_the_claims(store: CheckpointStore) -> None:
    """The outcome of one claim is independent of the others."""
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


async def test_a_write_without_a_response_is_unknown(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    row = await first(store)
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    async with backend.unresponsive() as unresponsive:
        outcomes = await unresponsive.claim_ownership(GROUP, [renew(row), claim(None, "1", "a")])
        assert [type(outcome) for outcome in outcomes] == [Unknown, Unknown]
        assert [o.requested for o in outcomes if isinstance(o, Unknown)] == [
            renew(row),
            claim(None, "1", "a"),
        ]
        reported = await unresponsive.update_checkpoint(advance(stored_checkpoint, 5, "5"))
        assert isinstance(reported, Unknown)
        assert reported.why


async def test_after_lost_responses_the_rows_show_what_was_written(
    backend: StoreBackend, store: CheckpointStore
) -> None:
    """The etag shows whether the write took effect, and a repeated call never writes twice."""
    row = await first(store)
    async with backend.unresponsive() as unresponsive:
        assert isinstance(await write(unresponsive, claim(row, "0", "b")), Unknown)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) in {("a", 1), ("b", 2)}
    assert (listed.etag == row.etag) == (listed.owner == "a")
    again = await write(store, claim(row, "0", "b"))
    assert isinstance(again, Granted if listed.owner == "a" else Refused)
    assert (await rows(store))["0"].epoch == 2


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_claim_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, fault: Fault
) -> None:
    """The repeated call is granted if the first had no effect, else refused."""
    row = await first(store)
    flaky = FlakyStore(store, ScriptedFaults([fault]))
    requested = claim(row, "0", "b")
    assert isinstance(await write(flaky, requested), Unknown)
    arrived = (await rows(store))["0"].owner == "b"
    assert arrived == (fault == "after")
    again = await write(flaky, requested)
    assert isinstance(again, Refused if arrived else Granted)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) == ("b", 2)
    await granted(store, renew(listed))


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_first_claim_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, fault: Fault
) -> None:
    flaky = FlakyStore(store, ScriptedFaults([fault]))
    assert isinstance(await write(flaky, claim(None, "0", "a")), Unknown)
    again = await write(flaky, claim(None, "0", "a"))
    assert isinstance(again, Refused if fault == "after" else Granted)
    assert {p: row.owner for p, row in (await rows(store)).items()} == {"0": "a"}


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_checkpoint_with_a_lost_response_is_unknown_and_written(
    store: CheckpointStore, fault: Fault
) -> None:
    stored_checkpoint = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    flaky = FlakyStore(store, ScriptedFaults([fault]))
    requested = advance(stored_checkpoint, 5, "500")
    assert isinstance(await flaky.update_checkpoint(requested), Unknown)
    read_back = (await checkpoints(store))["0"]
    assert (read_back == stored_checkpoint) == (fault == "before")
    again = await flaky.update_checkpoint(requested)
    assert isinstance(again, Granted if fault == "before" else Refused)
    assert replace((await checkpoints(store))["0"], etag="") == replace(requested, etag="")


async def test_one_lost_response_leaves_the_other_outcomes(store: CheckpointStore) -> None:
    flaky = FlakyStore(store, ScriptedFaults(["", "after", "", "before"]))
    claims = [claim(None, str(n), "a") for n in range(4)]
    outcomes = await flaky.claim_ownership(GROUP, claims)
    assert [type(outcome) for outcome in outcomes] == [Granted, Unknown, Granted, Unknown]
    assert sorted(await rows(store)) == ["0", "1", "2"]


async def test_a_race_with_lost_responses_has_one_winner(stores: list[CheckpointStore]) -> None:
    """At most one is granted, and the row is that host's."""
    faults: list[Fault] = ["", "after", "before", "", "after", "before", "", "after"]
    row = await first(stores[0], host="old")
    flaky = [
        FlakyStore(store, ScriptedFaults([m])) for store, m in zip(stores, faults, strict=True)
    ]
    requested = [claim(row, "0", f"host-{n}") for n in range(len(stores))]
    outcomes = await asyncio.gather(*map(write, flaky, requested))
    owner = (await rows(stores[0]))["0"].owner
    winners = [o.row.owner for o in outcomes if isinstance(o, Granted)]
    assert winners in ([], [owner])
    perhaps = [o.requested.owner for o in outcomes if isinstance(o, Unknown)]
    assert owner in winners + perhaps


async def test_a_refused_write_changes_nothing(store: CheckpointStore) -> None:
    row = await first(store)
    newer = await granted(store, renew(row, 4.0))
    before = (await rows(store))["0"]
    await refused(store, replace(claim(row, "0", "other"), rate=9.0))
    assert kept((await rows(store))["0"]) == kept(before) == kept(newer)
