"""The formats of legacy hosts: found in the container, kept, and never mixed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.storage.blob.aio import ContainerClient

from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import Checkpoint, Group, Unknown, claim, release
from pumphouse.leases.stores.blob_lease.formats import Format
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage
from tests.leases.contract.calls import checkpoint_of, granted, rows, write
from tests.leases.contract.stores import GROUP
from tests.leases.stores.blob_lease.legacy_host import LegacyHost, open_store

BODIES: dict[Format, dict[str, Any]] = {
    "net": {"Offset": None, "SequenceNumber": 0, "PartitionId": "0", "Owner": "", "Token": "",
            "Epoch": 0},
    "java": {"partitionId": "0", "epoch": -1, "owner": "", "sequenceNumber": 0, "token": ""},
    "javascript": {"partitionId": "0", "epoch": -1, "owner": "", "sequenceNumber": 0, "token": ""},
    "python": {"partition_id": "0", "epoch": 0, "owner": "", "sequence_number": 0, "token": ""},
}  # fmt: skip
NAMES = {fmt: "$default/0" if fmt == "javascript" else "$Default/0" for fmt in BODIES}


async def create(raw: ContainerClient, fmt: Format, name: str = "") -> None:
    await raw.upload_blob(name or NAMES[fmt], json.dumps(BODIES[fmt]))


async def names(raw: ContainerClient) -> list[str]:
    return [name async for name in raw.list_blob_names()]


@pytest.mark.parametrize("fmt", list(BODIES))
async def test_the_format_of_a_container_is_kept(
    storage: Storage, raw: ContainerClient, fmt: Format
) -> None:
    await create(raw, fmt)
    async with open_store(storage) as store:
        await store.initialise(GROUP, ["0", "1"])
        assert await store.find_format(GROUP) == fmt
        await granted(store, claim(None, "0", "a"))
        row = await granted(store, claim(None, "1", "a"))
        checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "1", 7, "70", 1)))
        folder = NAMES[fmt].split("/")[0]
        assert await names(raw) == [f"{folder}/0", f"{folder}/1"]
        for name in await names(raw):
            blob = raw.get_blob_client(name)
            fields = json.loads(await (await blob.download_blob()).readall())
            assert BODIES[fmt].keys() <= fields.keys()
            assert not (fields.keys() & {"PartitionId", "partition_id", "partitionId"}) - (
                BODIES[fmt].keys()
            )
            key = "owninghost" if fmt == "javascript" else "OWNINGHOST"
            assert (await blob.get_blob_properties()).metadata == {key: "a"}
        await granted(store, release(row))


async def test_a_first_write_finds_the_format_too(storage: Storage, raw: ContainerClient) -> None:
    """A claim, a checkpoint and a beat may come before the first listing."""
    await create(raw, "javascript")
    calls: tuple[Callable[[BlobLeaseStore], Awaitable[object]], ...] = (
        lambda store: store.claim_ownership(GROUP, [claim(None, "0", "a")]),
        lambda store: store.update_checkpoint(Checkpoint(GROUP, "0", epoch=1)),
        lambda store: store.beat(GROUP, "a"),
        lambda store: store.leave(GROUP, "a"),
    )
    for call in calls:
        async with open_store(storage) as store:
            await call(store)
    assert await names(raw) == ["$default/0"]


async def test_no_member_record_is_written_beside_javascript_hosts(
    storage: Storage, raw: ContainerClient
) -> None:
    """They take every blob of the container for a partition."""
    await create(raw, "javascript")
    async with open_store(storage) as store:
        await store.beat(GROUP, "a", 3)
        assert (await store.list_ownership(GROUP)).members == ()
        await store.leave(GROUP, "a")
    assert await names(raw) == ["$default/0"]


async def test_a_container_with_two_formats_is_refused(
    storage: Storage, raw: ContainerClient
) -> None:
    await create(raw, "net")
    async with open_store(storage) as store:
        await granted(store, claim(None, "0", "a"))
        await create(raw, "javascript")  # a JavaScript host starts
        for reading in (store.list_ownership, store.list_checkpoints, store.find_format):
            with pytest.raises(StoreError, match="two formats"):
                await reading(GROUP)
    async with open_store(storage) as store:
        outcome = await write(store, claim(None, "1", "b"))
        assert isinstance(outcome, Unknown)
        assert "two formats" in outcome.why
    for fmt in ("net", "javascript"):
        async with open_store(storage, format=fmt) as store:
            assert await store.find_format(GROUP) == fmt
            assert ("0" in await rows(store)) == (fmt == "net")
            await granted(store, claim((await rows(store)).get("0"), "0", "c"))


@pytest.mark.parametrize("fmt", list(BODIES))
async def test_a_format_can_be_forced(storage: Storage, raw: ContainerClient, fmt: Format) -> None:
    async with open_store(storage, format=fmt) as store:
        await store.initialise(GROUP, ["0"])
        assert await names(raw) == [NAMES[fmt]]
        body = json.loads(await (await raw.get_blob_client(NAMES[fmt]).download_blob()).readall())
        assert body.keys() >= BODIES[fmt].keys()


async def test_an_empty_container_gets_the_format_of_net(
    storage: Storage, raw: ContainerClient
) -> None:
    async with open_store(storage) as store:
        assert await store.find_format(GROUP) is None
        await store.initialise(GROUP, ["0"])
        assert await store.find_format(GROUP) == "net"


async def test_javascript_hosts_of_another_group_are_found_by_their_metadata(
    storage: Storage, raw: ContainerClient
) -> None:
    group = Group(GROUP.namespace, GROUP.hub, "readers")
    await raw.upload_blob(
        "readers/0",
        json.dumps(BODIES["javascript"] | {"owner": "js"}),
        metadata={"owninghost": "js"},
    )
    async with open_store(storage) as store:
        assert await store.find_format(group) == "javascript"


async def test_the_row_of_a_legacy_host_is_marked(
    store: BlobLeaseStore, legacy: LegacyHost
) -> None:
    await legacy.acquire()
    row = (await rows(store))["0"]
    assert row.legacy
    taken = await granted(store, claim(row, "0", "host-a"))
    assert not taken.legacy
    assert not (await rows(store))["0"].legacy
    await legacy.acquire()
    assert (await rows(store))["0"].legacy


@pytest.mark.parametrize(
    "options", [{"format": "cobol"}, {"spelling": "cobol"}, {"format": "net", "spelling": "java"}]
)
def test_invalid_formats_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"must be one of|contradict"):
        BlobLeaseStore.from_connection_string("UseDevelopmentStorage=true", "leases", **options)
