"""Clause 7: a read without a response raises StoreUnavailable, in time and without secrets.

A later call succeeds.
"""

from __future__ import annotations

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.leases.model import renew
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import first, granted, members, rows
from tests.leases.contract.stores import GROUP, StoreBackend


async def test_a_failure_to_read_raises(backend: StoreBackend, store: CheckpointStore) -> None:
    await first(store)
    async with backend.unresponsive() as unresponsive:
        for reading in (unresponsive.list_ownership, unresponsive.list_checkpoints):
            with pytest.raises(StoreUnavailable) as raised:
                await reading(GROUP)
            assert str(raised.value)
            for secret in backend.secrets:
                assert secret not in str(raised.value)
                assert secret not in repr(unresponsive)


async def test_a_beat_that_fails_raises(backend: StoreBackend, store: CheckpointStore) -> None:
    async with backend.unresponsive() as unresponsive:
        with pytest.raises(StoreUnavailable):
            await unresponsive.beat(GROUP, "a")
        with pytest.raises(StoreUnavailable):
            await unresponsive.leave(GROUP, "a")


async def test_a_store_works_after_a_failure(backend: StoreBackend, store: CheckpointStore) -> None:
    row = await first(store)
    async with backend.unresponsive() as unresponsive:
        with pytest.raises(StoreUnavailable):
            await unresponsive.list_ownership(GROUP)
    await granted(store, renew((await rows(store))["0"]))
    await store.beat(GROUP, "a")
    assert "a" in await members(store)
    assert (await rows(store))["0"].epoch == row.epoch
