"""Blobs that someone else has written: refused with their names, and never loaded whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO

import pytest
from azure.storage.blob.aio import ContainerClient

from pumphouse.errors import StoreError
from pumphouse.leases.model import Checkpoint, Unknown, claim, renew
from pumphouse.leases.stores.blob.container import BODY_BYTES_MAX
from pumphouse.leases.stores.blob.store import BlobStore
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage
from tests.leases.contract.calls import checkpoints, granted, refused, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.blob.official_stores import put, raw_container

PREFIX = str(GROUP).lower()


@pytest.fixture
async def store(storage: Storage) -> AsyncIterator[BlobStore]:
    async with BlobStore.from_connection_string(
        storage.direct, storage.container, create_container=True, timeout_s=60
    ) as store:
        yield store


@pytest.fixture
async def leases(storage: Storage) -> AsyncIterator[BlobLeaseStore]:
    async with BlobLeaseStore.from_connection_string(
        storage.direct, storage.container, timeout_s=60
    ) as store:
        yield store


@pytest.fixture
async def raw(storage: Storage) -> AsyncIterator[ContainerClient]:
    async with raw_container(storage.direct, storage.container) as raw:
        yield raw


# -- metadata -------------------------------------------------------------------------------------


async def test_a_checkpoint_beyond_every_limit_is_named(
    store: BlobStore, raw: ContainerClient
) -> None:
    await put(raw, f"{PREFIX}/checkpoint/0", {"offset": "1", "sequencenumber": "9" * 30})
    with pytest.raises(StoreError, match=r"/checkpoint/0' has the sequence number 9+"):
        await store.list_checkpoints(GROUP)


async def test_an_epoch_beyond_every_limit_is_named(store: BlobStore, raw: ContainerClient) -> None:
    await put(raw, f"{PREFIX}/ownership/0", {"ownerid": "a", "epoch": str(2**63 - 1)})
    with pytest.raises(StoreError, match=r"/ownership/0' has the epoch 9223372036854775807"):
        await store.list_ownership(GROUP)


async def test_a_listing_ends(
    store: BlobStore, raw: ContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(5)])
    monkeypatch.setattr("pumphouse.leases.stores.blob.container.ROWS_MAX", 5)
    assert len(await rows(store)) == 5
    await granted(store, claim(None, "5", "a"))
    with pytest.raises(StoreError, match="lists 6 or more blobs under '"):
        await store.list_ownership(GROUP)


async def test_a_listing_of_endless_pages_ends(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(6)])
    monkeypatch.setattr("pumphouse.leases.stores.blob.container.PAGES_MAX", 2)
    with pytest.raises(StoreError, match="blobs under ''"):
        assert [blob async for blob in store._container.list("", limit=2)]


# -- bodies ---------------------------------------------------------------------------------------


async def test_a_body_that_is_not_a_lease_is_named_and_kept(
    leases: BlobLeaseStore, raw: ContainerClient
) -> None:
    """Read as an empty lease, it would be replaced by the next claim, and its position lost."""
    await raw.upload_blob("$Default/0", b'{"Offset": "4200", "Sequen')
    for reading in (leases.list_ownership, leases.list_checkpoints):
        with pytest.raises(StoreError, match=r"blob '\$Default/0' has the body"):
            await reading(GROUP)
    outcome = await write(leases, claim(None, "0", "a"))
    assert isinstance(outcome, Unknown)
    assert "$Default/0" in outcome.why
    with pytest.raises(StoreError, match=r"blob '\$Default/0' has the body"):
        await leases.update_checkpoint(Checkpoint(GROUP, "0", 1, "10", 1))
    body = await (await raw.download_blob("$Default/0")).readall()
    assert body == b'{"Offset": "4200", "Sequen'


async def test_a_huge_body_is_not_downloaded(leases: BlobLeaseStore, raw: ContainerClient) -> None:
    await raw.upload_blob("$Default/0", BytesIO(bytes(BODY_BYTES_MAX + 1)))
    with pytest.raises(StoreError, match=rf"'\$Default/0' of http.* has {BODY_BYTES_MAX + 1} byte"):
        await leases.list_ownership(GROUP)


async def test_a_large_body_is_read(leases: BlobLeaseStore, raw: ContainerClient) -> None:
    fields = b'{"Offset": "4200", "SequenceNumber": 42}'
    await raw.upload_blob("$Default/0", BytesIO(fields.ljust(BODY_BYTES_MAX)))
    assert (await checkpoints(leases))["0"].sequence == 42


@pytest.mark.parametrize("token", ["a\\r\\nx-ms-meta-b: c", "\\u4e3b\\u6a5f", "x" * 5000])
async def test_a_token_that_is_not_a_lease_id_is_never_sent(
    leases: BlobLeaseStore, raw: ContainerClient, token: str
) -> None:
    """In a header, such a token would stop the host, or add a header that its author has chosen."""
    blob = raw.get_blob_client("$Default/0")
    await blob.upload_blob(f'{{"Owner": "a", "Epoch": 3, "Token": "{token}"}}'.encode())
    await blob.acquire_lease(60)
    row = (await rows(leases))["0"]
    await refused(leases, renew(row))
    await refused(leases, claim(row, "0", "b"))
