"""A container with a BlobLeaseStore and a legacy host."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from azure.storage.blob.aio import ContainerClient

from pumphouse.leases.stores.blob_lease.body import SPELLINGS
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage
from tests.leases.contract.stores import GROUP
from tests.leases.stores.blob.official_stores import raw_container
from tests.leases.stores.blob_lease.legacy_host import PARTITIONS, LegacyHost, open_store


@pytest.fixture
async def raw(storage: Storage) -> AsyncIterator[ContainerClient]:
    async with raw_container(storage.direct, storage.container) as raw:
        yield raw


@pytest.fixture
async def store(storage: Storage, raw: ContainerClient) -> AsyncIterator[BlobLeaseStore]:
    async with open_store(storage) as store:
        await store.initialise(GROUP, PARTITIONS)
        storage.proxy.reset_counts()
        yield store


@pytest.fixture(params=SPELLINGS)
def legacy(request: pytest.FixtureRequest, raw: ContainerClient) -> LegacyHost:
    return LegacyHost("vm-old", raw.get_blob_client("$Default/0"), request.param)
