"""The official Python stores and ours on one container, operation by operation, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.storage.blob.aio import ContainerClient

from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Refused,
    advance,
    claim,
    nominate,
    release,
    renew,
    stamp,
)
from pumphouse.leases.stores.blob.store import BlobStore
from tests.azurite.fixtures import Storage
from tests.leases.contract.calls import checkpoint_of, checkpoints, granted, refused, rows
from tests.leases.stores.blob.official_stores import (
    OfficialStore,
    checkpoint,
    official,
    ownership,
    put,
    raw_container,
    start_position,
)

# Mixed case, as users write it; all clients store it in lower case.
GROUP = Group("House.servicebus.windows.net", "Sensors", "$Default")
PREFIX = "house.servicebus.windows.net/sensors/$default"


@pytest.fixture
async def raw(storage: Storage) -> AsyncIterator[ContainerClient]:
    async with raw_container(storage.direct, storage.container) as raw:
        yield raw


@pytest.fixture
async def store(storage: Storage, raw: ContainerClient) -> AsyncIterator[BlobStore]:
    async with BlobStore.from_connection_string(
        storage.connection_string, storage.container, timeout_s=60
    ) as store:
        yield store


@pytest.fixture(params=["aio", "sync"])
async def sdk(
    request: pytest.FixtureRequest, storage: Storage, raw: ContainerClient
) -> AsyncIterator[OfficialStore]:
    async with official(request.param, storage.direct, storage.container) as sdk:
        yield sdk


# -- ownerships -----------------------------------------------------------------------------------


async def test_the_sdk_reads_our_rows(store: BlobStore, sdk: OfficialStore) -> None:
    ours = await granted(store, claim(None, "0", "host-a"), GROUP)
    await store.beat(GROUP, "host-a")
    checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1)))
    read = await sdk.list_ownership(GROUP)
    assert list(read) == ["0"]
    assert read["0"]["owner_id"] == "host-a"
    assert read["0"]["etag"] == ours.etag
    await granted(store, release(ours), GROUP)
    # Its listing returns an empty value as None, also for rows that it released itself.
    assert not (await sdk.list_ownership(GROUP))["0"]["owner_id"]


async def test_we_read_the_sdks_rows(store: BlobStore, sdk: OfficialStore) -> None:
    (theirs,) = await sdk.claim([ownership(GROUP, "3", "9f2c")])
    read = await rows(store, GROUP)
    assert list(read) == ["3"]
    assert (read["3"].owner, read["3"].epoch) == ("9f2c", 0)
    assert read["3"].etag == theirs["etag"].strip('"')


async def test_each_takes_rows_from_the_other(store: BlobStore, sdk: OfficialStore) -> None:
    ours = await granted(store, claim(None, "0", "host-a", epoch_known=6), GROUP)
    listed = (await sdk.list_ownership(GROUP))["0"]
    (theirs,) = await sdk.claim([ownership(GROUP, "0", "sdk", listed["etag"])])
    await refused(store, renew(ours), GROUP)
    row = (await rows(store, GROUP))["0"]
    assert (row.owner, row.epoch) == ("sdk", 0)  # the SDK has dropped our epoch
    back = await granted(store, claim(row, "0", "host-a", epoch_known=7), GROUP)
    assert back.epoch == 8
    assert await sdk.claim([theirs]) == []  # it has lost the row, and detects that


async def test_a_request_for_a_partition_keeps_the_sdks_owner(
    store: BlobStore, sdk: OfficialStore
) -> None:
    """The SDK renews over its listed etag, as in every cycle."""
    await sdk.claim([ownership(GROUP, "0", "sdk")])
    asked = nominate((await rows(store, GROUP))["0"], "host-a", 30.0)
    await granted(store, asked, GROUP)
    listed = (await sdk.list_ownership(GROUP))["0"]
    assert listed["owner_id"] == "sdk"
    assert len(await sdk.claim([ownership(GROUP, "0", "sdk", listed["etag"])])) == 1
    row = (await rows(store, GROUP))["0"]
    assert (row.owner, row.successor) == ("sdk", "")


async def test_the_loser_of_a_race_of_first_claims_is_refused(
    store: BlobStore, sdk: OfficialStore
) -> None:
    """The SDK sets metadata before it creates the blob, and so may overwrite our row."""
    for partition in map(str, range(10)):
        outcomes, won = await asyncio.gather(
            store.claim_ownership(GROUP, [claim(None, partition, "host-a")]),
            sdk.claim([ownership(GROUP, partition, "sdk")]),
        )
        (outcome,) = outcomes
        owner = (await rows(store, GROUP))[partition].owner
        assert owner == ("sdk" if won else "host-a")
        assert won or isinstance(outcome, Granted)
        if isinstance(outcome, Granted) and won:
            await refused(store, renew(outcome.row), GROUP)


async def test_the_sdk_adopts_what_we_have_released(store: BlobStore, sdk: OfficialStore) -> None:
    row = await granted(store, claim(None, "0", "host-a"), GROUP)
    await granted(store, release(row), GROUP)
    listed = (await sdk.list_ownership(GROUP))["0"]
    assert len(await sdk.claim([ownership(GROUP, "0", "sdk", listed["etag"])])) == 1


# -- checkpoints ----------------------------------------------------------------------------------


async def test_the_sdk_starts_after_our_checkpoint(store: BlobStore, sdk: OfficialStore) -> None:
    await store.update_checkpoint(Checkpoint(GROUP, "0", 42, "4200", 3, enqueued_ms=1))
    read = (await sdk.list_checkpoints(GROUP))["0"]
    assert (read["sequence_number"], read["offset"]) == (42, "4200")
    assert start_position(read, "@latest") == "4200"


async def test_the_sdk_does_not_see_a_bare_stamp(store: BlobStore, sdk: OfficialStore) -> None:
    mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 3)))
    read = await sdk.list_checkpoints(GROUP)
    assert read == {}
    for default in ("-1", "@latest"):
        assert start_position(read.get("0"), default) == default
    checkpoint_of(await store.update_checkpoint(advance(mark, 0, "0")))
    assert start_position((await sdk.list_checkpoints(GROUP))["0"], "@latest") == "0"


async def test_the_sdk_misreads_a_checkpoint_with_an_empty_offset(
    sdk: OfficialStore, raw: ContainerClient
) -> None:
    """The SDK would request the events after "None" from the hub."""
    await put(raw, f"{PREFIX}/checkpoint/0", {"offset": "", "sequencenumber": "-1"})
    read = (await sdk.list_checkpoints(GROUP))["0"]
    assert start_position(read, "@latest") == "None"


async def test_a_checkpoint_that_the_sdk_writes_beside_our_stamp_counts(
    store: BlobStore, sdk: OfficialStore
) -> None:
    mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 3)))
    await sdk.checkpoint(checkpoint(GROUP, "0", 42, "4200"))
    for late in (stamp(mark, GROUP, "0", 4), advance(mark, 7, "700")):
        assert isinstance(await store.update_checkpoint(late), Refused)
    read = (await checkpoints(store, GROUP))["0"]
    assert (read.sequence, read.epoch) == (42, 0)
    checkpoint_of(await store.update_checkpoint(stamp(read, GROUP, "0", 4)))


async def test_a_first_stamp_finds_a_checkpoint_written_meanwhile(
    store: BlobStore, sdk: OfficialStore
) -> None:
    assert await checkpoints(store, GROUP) == {}
    await sdk.checkpoint(checkpoint(GROUP, "0", 42, "4200"))
    assert isinstance(await store.update_checkpoint(stamp(None, GROUP, "0", 1)), Refused)
    assert (await checkpoints(store, GROUP))["0"].sequence == 42


async def test_a_checkpoint_by_offset_alone_does_not_break_the_sdk(
    store: BlobStore, sdk: OfficialStore
) -> None:
    await store.update_checkpoint(Checkpoint(GROUP, "0", None, "4200", 3))
    read = (await sdk.list_checkpoints(GROUP))["0"]
    assert start_position(read, "@latest") == "4200"


async def test_we_read_the_sdks_checkpoints(store: BlobStore, sdk: OfficialStore) -> None:
    await sdk.checkpoint(checkpoint(GROUP, "0", 0, "0"))
    await sdk.checkpoint(checkpoint(GROUP, "1", 42, "4200"))
    read = await checkpoints(store, GROUP)
    assert {p: (mark.sequence, mark.offset, mark.epoch) for p, mark in read.items()} == {
        "0": (0, "0", 0),
        "1": (42, "4200", 0),
    }
    stamped = checkpoint_of(await store.update_checkpoint(stamp(read["1"], GROUP, "1", 4)))
    assert (await checkpoints(store, GROUP))["1"] == stamped


async def test_an_unconditional_write_of_the_sdk_is_detected(
    store: BlobStore, sdk: OfficialStore
) -> None:
    mark = checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "0", 42, "4200", 3)))
    await sdk.checkpoint(checkpoint(GROUP, "0", 7, "700"))  # behind ours
    outcome = await store.update_checkpoint(advance(mark, 43, "4300"))
    assert isinstance(outcome, Refused)
    read = (await checkpoints(store, GROUP))["0"]
    assert (read.sequence, read.epoch) == (7, 0)
    checkpoint_of(await store.update_checkpoint(advance(stamp(read, GROUP, "0", 3), 43, "4300")))


# -- what others have left ------------------------------------------------------------------------


async def test_rows_that_break_the_sdk_do_not_break_us(
    store: BlobStore, sdk: OfficialStore, raw: ContainerClient
) -> None:
    await put(raw, f"{PREFIX}/ownership/0", {})  # released by Rust
    await put(raw, f"{PREFIX}/checkpoint/0", {"offset": "100", "sequencenumber": ""})  # .NET
    await put(raw, f"{PREFIX}/checkpoint/1", {"sequencenumber": "42"})  # Java
    with pytest.raises(KeyError):
        await sdk.list_ownership(GROUP)
    with pytest.raises((KeyError, ValueError, TypeError)):
        await sdk.list_checkpoints(GROUP)
    assert (await rows(store, GROUP))["0"].owner == ""
    read = await checkpoints(store, GROUP)
    assert [(mark.sequence, mark.offset) for mark in read.values()] == [(None, "100"), (42, None)]


async def test_keys_are_read_in_any_case(store: BlobStore, raw: ContainerClient) -> None:
    await put(raw, f"{PREFIX}/ownership/0", {"OwnerId": "java"})
    await put(raw, f"{PREFIX}/checkpoint/0", {"Offset": "100", "SequenceNumber": "1"})
    row = (await rows(store, GROUP))["0"]
    assert row.owner == "java"
    mark = (await checkpoints(store, GROUP))["0"]
    assert (mark.sequence, mark.offset) == (1, "100")
    await granted(store, claim(row, "0", "host-a"), GROUP)
    assert (await rows(store, GROUP))["0"].owner == "host-a"


async def test_checkpoints_in_mixed_case_are_listed_and_rewritten(
    storage: Storage, store: BlobStore, raw: ContainerClient
) -> None:
    """Early Go hosts used the names in the given case."""
    given = str(GROUP)
    await put(raw, f"{given}/checkpoint/0", {"offset": "100", "sequencenumber": "1"})
    await put(raw, f"{given}/checkpoint/1", {"offset": "200", "sequencenumber": "2"})
    await put(raw, f"{PREFIX}/checkpoint/1", {"offset": "300", "sequencenumber": "3"})
    await put(raw, f"{given}/checkpoint/2", {"offset": "400", "sequencenumber": "4"})
    checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "2", 7)))
    read = await checkpoints(store, GROUP)
    assert {p: (m.sequence, m.epoch, bool(m.etag)) for p, m in read.items()} == {
        "0": (1, 0, False),
        "1": (3, 0, True),
        "2": (4, 7, True),  # our bare stamp does not hide the position
    }
    for partition in ("0", "2"):
        checkpoint_of(await store.update_checkpoint(stamp(read[partition], GROUP, partition, 8)))
    again = await checkpoints(store, GROUP)
    assert [(again[p].sequence, again[p].epoch) for p in ("0", "2")] == [(1, 8), (4, 8)]


async def test_an_empty_listing_of_mixed_case_is_not_repeated(
    storage: Storage, store: BlobStore
) -> None:
    storage.proxy.reset_counts()
    for _ in range(3):
        assert await store.list_checkpoints(GROUP) == []
    assert storage.proxy.requests == {"list": 4}


async def test_ownerships_in_mixed_case_are_listed_with_the_option(
    storage: Storage, raw: ContainerClient
) -> None:
    await put(raw, f"{GROUP}/ownership/0", {"ownerid": "go"})
    await put(raw, f"{GROUP}/ownership/1", {"ownerid": "go"})
    await put(raw, f"{PREFIX}/ownership/1", {"ownerid": "host-b"})
    async with BlobStore.from_connection_string(
        storage.direct, storage.container, mixed_case=True, timeout_s=60
    ) as store:
        read = await rows(store, GROUP)
        assert [(row.owner, bool(row.etag)) for row in read.values()] == [
            ("go", False),
            ("host-b", True),
        ]
        await granted(store, claim(read["0"], "0", "host-a"), GROUP)
        assert (await rows(store, GROUP))["0"].owner == "host-a"
