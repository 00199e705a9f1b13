"""A chain of owners with faults: no checkpoint passes an unhandled event or goes back."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.flaky_store import FlakyStore, RandomFaults
from pumphouse.leases.model import Checkpoint, Ownership, claim
from pumphouse.leases.stores.memory import MemoryStore
from tests.leases.contract.calls import granted
from tests.leases.contract.stores import GROUP
from tests.leases.sdk_writes import update_checkpoint_as_sdk


@pytest.mark.parametrize(
    ("sdk", "stale"),
    # Not both: after an SDK has erased the stamp only the row shows a later owner,
    # so the listing of rows must not be stale.
    [(0.2, 0.0), (0.0, 0.3)],
    ids=["beside an SDK", "with stale listings"],
)
@pytest.mark.parametrize("seed", range(40))
async def test_a_chain_of_owners_with_faults_loses_nothing(
    seed: int, sdk: float, stale: float
) -> None:
    """Owners follow each other, each continues from its stamp; the previous one resumes late.

    However many responses are lost: no checkpoint passes an unhandled event or goes back, and an
    owner that was fenced off never writes again.
    """
    rng = Random(seed)
    store = MemoryStore()
    flaky = FlakyStore(store, RandomFaults(rng, before=0.2, after=0.2, stale=stale, failed=0.1))
    handled = reached = -1
    old: CheckpointWriter | None = None
    row: Ownership | None = None
    happened: Counter[str] = Counter()
    for epoch in range(1, 12):
        row = await granted(store, claim(row, "0", f"owner-{epoch}"))
        writer = CheckpointWriter(flaky, GROUP, "0", row.epoch)
        start = await insist(writer.stamp)
        at = -1 if start.sequence is None else start.sequence
        assert reached <= at <= handled
        for _ in range(rng.randrange(12)):
            at += 1
            handled = max(handled, at)
            if rng.random() < sdk:
                theirs = Checkpoint(GROUP, "0", rng.randrange(handled + 1), None)
                update_checkpoint_as_sdk(store, theirs)
                happened["sdk"] += 1
                reached = min(reached, theirs.sequence or 0)  # until one of our writers corrects it
            elif old is not None and rng.random() < 0.3:
                with pytest.raises((OwnershipLost, StoreError)):
                    await old.advance(handled + 100, None)
                happened["woke up"] += 1
            before = writer._known
            try:
                written = await writer.advance(at, str(at))
            except StoreError:
                continue
            (stored,) = await store.list_checkpoints(GROUP)
            assert written.sequence is not None
            assert at <= written.sequence <= handled
            if written is not before:  # otherwise an SDK was ahead, and nothing was written
                assert stored == written
                assert stored.epoch == epoch
                reached = written.sequence
                happened["advanced"] += 1
        old = writer
    assert happened["advanced"] > 0
    assert flaky.injected.total() > 0


async def insist(step: object) -> Checkpoint:
    for _ in range(100):
        try:
            stored: Checkpoint = await step()  # type: ignore[operator]
        except StoreError:
            continue
        return stored
    raise AssertionError("the store never responded")
