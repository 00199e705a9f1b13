"""Clause 9: hosts in several event loops of a process, each with its own handle.

A `MemoryStore` is left out: its handles are one object.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager

import pytest

from pumphouse.leases.model import Granted, claim
from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.calls import rows, write
from tests.leases.contract.stores import STORES, StoreBackend

PARTITIONS = 8
HANDLES = {name: maker for name, maker in STORES.items() if name != "memory"}


async def claim_all(
    opened: AbstractAsyncContextManager[CheckpointStore], owner: str, together: threading.Barrier
) -> set[str]:
    async with opened as store:
        await asyncio.to_thread(together.wait, 60)
        claims = (claim(None, str(partition), owner) for partition in range(PARTITIONS))
        outcomes = await asyncio.gather(*(write(store, row) for row in claims))
    return {outcome.row.partition for outcome in outcomes if isinstance(outcome, Granted)}


@pytest.mark.parametrize("backend", HANDLES.values(), ids=list(HANDLES), indirect=True)
async def test_event_loops_with_a_handle_each(backend: StoreBackend) -> None:
    async with backend.open() as store:
        together = threading.Barrier(2)
        threads = [
            asyncio.to_thread(asyncio.run, claim_all(backend.open(), owner, together))
            for owner in "ab"
        ]
        first, second = await asyncio.gather(*threads)
        assert sorted(first | second) == [str(partition) for partition in range(PARTITIONS)]
        assert first.isdisjoint(second)
        stored = await rows(store)
        assert {p for p, row in stored.items() if row.owner == "a"} == first
