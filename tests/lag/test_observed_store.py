"""The names of the groups with rows in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.errors import StoreUnavailable
from pumphouse.lag.observed_store import ObservedStore, groups_of_blobs, groups_of_leased_blobs
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store_url import open_store, parse_store_url
from tests.azurite.fixtures import Storage
from tests.lag.store_urls import store_url as store_url
from tests.leases.stores.blob.official_stores import raw_container
from tests.postgres.server import PostgresServer


def test_names_of_blobs() -> None:
    blobs = [
        "ns/a/$default/checkpoint/0",
        "ns/a/readers/ownership/1",
        "ns/a/b/readers2/ownership/1",  # of the hub a/b
        "ns/a/notes",
        "ns/a/idle/member/anna",
    ]
    assert groups_of_blobs(blobs, "ns/a/") == {"$default", "readers"}
    leased = ["$Default/0", "$Default~members/anna", "deep/er/0", "notes"]
    assert groups_of_leased_blobs(leased) == {"$Default"}


async def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with pytest.raises(StoreUnavailable, match="does not exist"):
        async with ObservedStore(parse_store_url(path)):
            pass
    assert not path.exists()


async def test_missing_tables_are_not_created(postgres: PostgresServer) -> None:
    url = parse_store_url(postgres.database())
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="does a consumer use it"):
            async with ObservedStore(url):
                pass


async def test_groups_of_every_store(store_url: str, storage: Storage) -> None:
    url = parse_store_url(store_url)
    readers, default = Group("ns", "orders", "readers"), Group("ns", "orders")
    async with raw_container(storage.direct, storage.container), open_store(url) as store:
        async with ObservedStore(url) as observed:
            assert await observed.groups("NS", "orders") == ("$Default",)  # none: the default
        await store.claim_ownership(readers, [Ownership("0", "anna", 1)])
        await store.update_checkpoint(Checkpoint(default, "0", 3, "3", 1))
        if url.kind != "bloblease":  # where a container belongs to one hub
            await store.claim_ownership(Group("ns", "doors", "x"), [Ownership("0", "bert", 1)])
        async with ObservedStore(url) as observed:
            groups = await observed.groups("NS", "Orders")
            assert groups == ("$Default", "readers")
            listing = await observed.store.list_ownership(readers)
            assert [row.owner for row in listing.ownerships] == ["anna"]
