"""Clause 6: rows with fewer fields than ours are read without an error, and may be claimed.

How an official SDK spells them belongs to the store that shares its rows with one; here is what
every store must be able to hold.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pumphouse.leases.model import Checkpoint, advance, claim, stamp
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import checkpoint_of, checkpoints, first, granted, rows
from tests.leases.contract.stores import GROUP

FOREIGN = [
    Checkpoint(GROUP, "0", 42, "4200"),
    Checkpoint(GROUP, "0", 42, None),
    Checkpoint(GROUP, "0", None, "4200"),
    Checkpoint(GROUP, "0", None, "geo:4200"),
    Checkpoint(GROUP, "0", 0, "0"),
]


@pytest.mark.parametrize(
    "foreign",
    FOREIGN,
    ids=lambda stored_checkpoint: f"{stored_checkpoint.sequence}-{stored_checkpoint.offset}",
)
async def test_a_stamp_keeps_the_position_of_a_checkpoint_without_an_epoch(
    store: CheckpointStore, foreign: Checkpoint
) -> None:
    await store.update_checkpoint(foreign)
    read_back = (await checkpoints(store))["0"]
    assert replace(read_back, etag="") == foreign
    stamped = checkpoint_of(await store.update_checkpoint(stamp(read_back, GROUP, "0", 8)))
    assert (stamped.sequence, stamped.offset) == (foreign.sequence, foreign.offset)
    moved = checkpoint_of(await store.update_checkpoint(advance(stamped, 43, "4300")))
    assert await checkpoints(store) == {"0": moved}


async def test_a_bare_stamp_has_no_start_position(store: CheckpointStore) -> None:
    await store.update_checkpoint(stamp(None, GROUP, "0", 8))
    read_back = (await checkpoints(store))["0"]
    assert (read_back.sequence, read_back.offset) == (None, None)


@pytest.mark.parametrize("owner", ["x", "Host-A", "owner with spaces", "ünïcode 主機", "a/b:c=d;e"])
async def test_owners_keep_their_names(store: CheckpointStore, owner: str) -> None:
    row = await first(store, host=owner)
    assert (await rows(store))["0"].owner == owner
    row = await granted(store, claim(row, "0", "b"))
    assert (await rows(store))["0"].owner == "b"


async def test_an_epoch_known_from_elsewhere_is_passed(store: CheckpointStore) -> None:
    await granted(store, claim(None, "0", "a", epoch_known=41))
    assert (await rows(store))["0"].epoch == 42
