"""Clause 8: rows of one group are never visible in another; names are case-insensitive."""

from __future__ import annotations

import pytest

from pumphouse.leases.model import Checkpoint, Group, claim, renew
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import checkpoint_of, checkpoints, granted, members, refused, rows
from tests.leases.contract.stores import GROUP

OTHERS = [
    Group("other.servicebus.windows.net", "sensors", "$Default"),
    Group("house.servicebus.windows.net", "sensor", "$Default"),
    Group("house.servicebus.windows.net", "sensors", "$Def"),
    Group("house.servicebus.windows.net", "sensors", "$Default2"),
    Group("house.servicebus.windows.net", "sensors2", "$Default"),
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
async def test_groups_are_separate(store: CheckpointStore, other: Group) -> None:
    mine = await granted(store, claim(None, "0", "a"))
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
    )
    await store.beat(GROUP, "a")
    assert await rows(store, other) == {}
    assert await members(store, other) == {}
    assert await checkpoints(store, other) == {}
    theirs = await granted(store, claim(None, "0", "b"), other)
    checkpoint_of(await store.update_checkpoint(Checkpoint(other, "0", 7, "70", 1)))
    await store.beat(other, "b")
    await store.leave(other, "a")
    assert (await rows(store))["0"].owner == "a"
    assert (await rows(store, other))["0"].owner == "b"
    assert list(await members(store)) == ["a"]
    assert await checkpoints(store) == {"0": stored_checkpoint}
    await granted(store, renew(mine))
    await granted(store, renew(theirs), other)


SPELT = Group("House.ServiceBus.Windows.Net", "SENSORS", "$default")


async def test_names_are_compared_case_insensitively(store: CheckpointStore) -> None:
    row = await granted(store, claim(None, "0", "a"), SPELT)
    stored_checkpoint = checkpoint_of(
        await store.update_checkpoint(Checkpoint(SPELT, "0", 5, "50", 1))
    )
    assert stored_checkpoint.group == SPELT
    await store.beat(SPELT, "a")
    assert (await rows(store))["0"].etag == row.etag
    await refused(store, claim(None, "0", "b"))
    await granted(store, renew(row))
    read_back = (await checkpoints(store))["0"]
    assert (read_back.etag, read_back.sequence) == (stored_checkpoint.etag, 5)
    assert str(read_back.group).lower() == str(GROUP).lower()
    assert list(await members(store)) == ["a"]
