"""Ranges that a query skipped, in every kind of store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.tenancy.journal import JournalRange
from pumphouse.spark.tenancy.skipped_ranges import read_skipped, skipped_key, write_skipped
from tests.azurite.server import Azurite

GROUP = Group("name.servicebus.windows.net", "sensors")


@pytest.mark.parametrize("kind", ["sqlite", "blob", "bloblease"])
async def test_a_later_run_knows_the_skipped_ranges(
    kind: str, azurite: Azurite, tmp_path: Path
) -> None:
    skipped, earlier = JournalRange(100, 120, 5), JournalRange(80, 90, 7)
    blobs = f"{kind}:{azurite.connection_string()};Container=left-{uuid4()}"
    url = f"sqlite:///{tmp_path}/leases.db" if kind == "sqlite" else blobs
    options: dict[str, Any] = {} if kind == "sqlite" else {"create_container": True}
    async with open_store(url, **options) as store:
        await write_skipped(store, GROUP, "watch/1", "0", skipped)
        await write_skipped(store, GROUP, "watch/1", "1", skipped)
        await write_skipped(store, GROUP, "watch/1", "1", earlier)  # with another epoch
        renamed = await read_skipped(store, GROUP, ("other", "watch/1", ""))
        assert renamed == {skipped_key("0", skipped), skipped_key("1", earlier)}
        assert skipped_key("0", JournalRange(100, 120, 6)) not in renamed
        assert await read_skipped(store, GROUP, ("other",)) == set()
        assert not await store.list_checkpoints(GROUP)  # the group itself is unchanged
