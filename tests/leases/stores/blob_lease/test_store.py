"""BlobLeaseStore beside legacy hosts, whose requests are made one by one."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob.aio import BlobLeaseClient, ContainerClient

from pumphouse.errors import OptionError
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Ownership,
    Refused,
    Unknown,
    advance,
    claim,
    hand_over,
    nominate,
    release,
    renew,
    stamp,
)
from pumphouse.leases.stores.blob_lease.body import spell
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage
from tests.azurite.proxy import Fault
from tests.leases.contract.calls import (
    checkpoint_of,
    checkpoints,
    granted,
    members,
    refused,
    row_of,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP
from tests.leases.stores.blob_lease.legacy_host import LEASE_S, PARTITIONS, LegacyHost, open_store

# -- names and metadata ---------------------------------------------------------------------------


async def test_initialise_creates_missing_blobs_and_keeps_existing_ones(
    storage: Storage, store: BlobLeaseStore, raw: ContainerClient
) -> None:
    blobs = [name async for name in raw.list_blob_names()]
    assert blobs == [f"$Default/{partition}" for partition in PARTITIONS]
    assert (await store.list_ownership(GROUP)).ownerships == ()
    row = await granted(store, claim(None, "0", "a"))
    await store.initialise(GROUP, [*PARTITIONS, "4"])
    assert [name async for name in raw.list_blob_names()] == [*blobs, "$Default/4"]
    assert (await rows(store))["0"].etag == row.etag


async def test_names_are_those_of_the_legacy_hosts(storage: Storage, raw: ContainerClient) -> None:
    async with open_store(storage, prefix="my-prefix-") as store:
        await store.initialise(GROUP, ["0"])
        await store.beat(GROUP, "VM 1/x")
        names = [name async for name in raw.list_blob_names()]
        assert names == ["my-prefix-$Default/0", "my-prefix-$Default~members/VM%201%2Fx"]
        assert list(await members(store)) == ["VM 1/x"]


async def test_the_owner_is_in_the_metadata_and_in_the_body(
    store: BlobLeaseStore, raw: ContainerClient
) -> None:
    blob = raw.get_blob_client("$Default/0")
    row = await granted(store, claim(None, "0", "a"))
    assert (await blob.get_blob_properties()).metadata == {"OWNINGHOST": "a"}
    body = json.loads(await (await blob.download_blob()).readall())
    assert body["Owner"] == "a"
    # The token is the id of the lease: the service accepts no other one.
    await BlobLeaseClient(blob, lease_id=body["Token"]).renew()
    await granted(store, release(row))
    properties = await blob.get_blob_properties()
    assert properties.metadata == {}
    assert properties.lease.state == "available"


@pytest.mark.parametrize("options", [{"lease_s": 14}, {"lease_s": 61}, {"spelling": "cobol"}])
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="must be"):
        BlobLeaseStore.from_connection_string("UseDevelopmentStorage=true", "leases", **options)


# -- beside a legacy host -------------------------------------------------------------------------


async def test_we_read_owner_and_checkpoint_of_a_legacy_host(
    store: BlobLeaseStore, legacy: LegacyHost
) -> None:
    await legacy.acquire()
    row = (await rows(store))["0"]
    assert (row.owner, row.epoch, row.age_s) == ("vm-old", 1, 0)
    assert await checkpoints(store) == {}
    await legacy.checkpoint("4200", 42)
    mark = (await checkpoints(store))["0"]
    assert (mark.sequence, mark.offset, mark.epoch) == (42, "4200", 0)
    assert (await rows(store))["0"].etag == row.etag


async def test_a_legacy_host_reads_our_owner_and_checkpoint(
    storage: Storage, legacy: LegacyHost
) -> None:
    async with open_store(storage, spelling=legacy.spelling) as store:
        row = await granted(store, claim(None, "0", "host-a"))
        mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
        assert (await legacy.read())["offset"] is None  # a stamp is not a checkpoint
        checkpoint_of(await store.update_checkpoint(advance(mark, 42, "4200")))
        values = await legacy.read()
        assert (values["owner"], values["epoch"]) == ("host-a", 1)
        assert (values["offset"], values["sequencenumber"], values["partitionid"]) == (
            "4200",
            42,
            "0",
        )
        words = json.loads(await (await legacy.blob.download_blob()).readall())
        assert spell(("sequence", "number"), legacy.spelling) in words
        await granted(store, release(row))
        assert (await legacy.read())["owner"] == ""


async def test_we_steal_the_lease_of_a_legacy_host_by_its_token(
    store: BlobLeaseStore, legacy: LegacyHost
) -> None:
    await legacy.acquire()
    await legacy.checkpoint("4200", 42)
    row, old = (await rows(store))["0"], (await legacy.read())["token"]
    taken = await granted(store, claim(row, "0", "host-a"))
    assert taken.epoch == row.epoch + 1
    values = await legacy.read()
    assert (values["owner"], values["offset"]) == ("host-a", "4200")
    for invalid in (old, "0" * 8 + str(uuid.uuid4())[8:]):
        with pytest.raises(HttpResponseError, match="LeaseIdMismatch"):
            await BlobLeaseClient(legacy.blob, lease_id=invalid).renew()
    await BlobLeaseClient(legacy.blob, lease_id=values["token"]).renew()


async def test_a_steal_by_a_legacy_host_is_detected(
    store: BlobLeaseStore, legacy: LegacyHost
) -> None:
    row = await granted(store, claim(None, "0", "host-a"))
    mark = checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1)))
    await legacy.acquire()
    await refused(store, renew(row))
    assert isinstance(await store.update_checkpoint(advance(mark, 6, "60")), Refused)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.epoch) == ("vm-old", 2)
    checkpoint = (await checkpoints(store))["0"]
    assert (checkpoint.sequence, checkpoint.offset) == (5, "50")


async def test_a_request_for_a_partition_keeps_its_lease(
    storage: Storage, store: BlobLeaseStore, legacy: LegacyHost
) -> None:
    token = await legacy.acquire()
    await granted(store, nominate((await rows(store))["0"], "host-a", 60.0))
    await BlobLeaseClient(legacy.blob, lease_id=token).renew()
    assert (await rows(store))["0"].successor == "host-a"
    storage.azurite.advance(LEASE_S + 1)
    row = (await rows(store))["0"]
    assert row.age_s == math.inf  # it died, and our request did not extend its lease
    await granted(store, claim(row, "0", "host-a"))


async def test_unknown_fields_are_kept(store: BlobLeaseStore, legacy: LegacyHost) -> None:
    values = {**await legacy.read(), "event_processor_context": {"window": [1, 2]}}
    await legacy.blob.upload_blob(json.dumps(values), overwrite=True)
    await granted(store, claim(None, "0", "a"))
    fields = json.loads(await (await legacy.blob.download_blob()).readall())
    assert fields["event_processor_context"] == {"window": [1, 2]}


# -- leases ---------------------------------------------------------------------------------------


async def test_a_lease_without_renewals_expires(storage: Storage, store: BlobLeaseStore) -> None:
    row = await granted(store, claim(None, "0", "a"))
    storage.azurite.advance(LEASE_S - 5)
    assert (await rows(store))["0"].age_s == 0
    row = await granted(store, renew(row))
    storage.azurite.advance(LEASE_S - 5)
    assert (await rows(store))["0"].age_s == 0
    storage.azurite.advance(10)
    assert (await rows(store))["0"].age_s == math.inf
    await granted(store, renew(row))  # no host has claimed it
    assert (await rows(store))["0"].age_s == 0


async def test_a_lease_is_rounded_up_to_whole_seconds(storage: Storage) -> None:
    async with open_store(storage, lease_s=20.5) as store:
        await granted(store, claim(None, "0", "a"))
        storage.azurite.advance(20)
        assert (await rows(store))["0"].age_s == 0
        storage.azurite.advance(2)
        assert (await rows(store))["0"].age_s == math.inf


async def test_a_broken_lease_is_free(store: BlobLeaseStore, raw: ContainerClient) -> None:
    row = await granted(store, claim(None, "0", "a"))
    await BlobLeaseClient(raw.get_blob_client("$Default/0")).break_lease(lease_break_period=0)
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.age_s) == ("a", math.inf)
    await granted(store, claim(listed, "0", "b"))
    await refused(store, renew(row))


async def test_a_foreign_lease_is_respected(
    storage: Storage, store: BlobLeaseStore, raw: ContainerClient
) -> None:
    """A program that leases blobs without writing its token."""
    blob = raw.get_blob_client("$Default/0")
    foreign_lease = BlobLeaseClient(blob)
    await foreign_lease.acquire(lease_duration=60)
    await refused(store, claim(None, "0", "a"))
    assert isinstance(await store.update_checkpoint(stamp(None, GROUP, "0", 1)), Refused)
    assert await rows(store) == {}
    await foreign_lease.release()
    assert await rows(store) == {}
    await granted(store, claim(None, "0", "a"))


async def test_a_hand_over_moves_the_lease_with_the_row(storage: Storage) -> None:
    async with open_store(storage) as old, open_store(storage) as new:
        row = await granted(old, claim(None, "0", "a"))
        asked = await granted(new, nominate((await rows(new))["0"], "b", 20.0))
        await refused(old, renew(row))
        listed_row = (await rows(old))["0"]
        assert (listed_row.successor, listed_row.etag) == ("b", asked.etag)
        given = await granted(old, hand_over(listed_row))
        assert (await rows(new))["0"].owner == "b"
        await granted(new, renew((await rows(new))["0"]))
        await refused(old, renew(given))
        assert isinstance(await write(old, release(given)), Refused)


async def test_one_of_eight_racing_steals_is_granted(storage: Storage) -> None:
    rivals = [open_store(storage) for _ in range(8)]
    for rival in rivals:
        await rival.__aenter__()
    for partition in PARTITIONS:
        row = await one_winner(rivals, [claim(None, partition, f"h-{n}") for n in range(8)])
        row = await one_winner(rivals, [claim(row, partition, f"h-{n}") for n in range(8)])
        storage.azurite.advance(LEASE_S + 1)
        await one_winner(rivals, [claim(row, partition, f"h-{n}") for n in range(8)])
    for rival in rivals:
        await rival.__aexit__()


async def one_winner(stores: list[BlobLeaseStore], requested: list[Ownership]) -> Ownership:
    outcomes = await asyncio.gather(*map(write, stores, requested))
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 7
    (won,) = [outcome.row for outcome in outcomes if isinstance(outcome, Granted)]
    assert (await rows(stores[0]))[won.partition].etag == won.etag
    return won


async def test_checkpoints_of_the_owner_do_not_prevent_a_steal(
    storage: Storage,
) -> None:
    """Each checkpoint changes the blob that the steal writes over."""
    async with open_store(storage) as owner, open_store(storage) as rival:
        await granted(owner, claim(None, "0", "a"))
        mark = checkpoint_of(await owner.update_checkpoint(stamp(None, GROUP, "0", 1)))
        row = (await rows(rival))["0"]
        for sequence in range(3):
            mark = checkpoint_of(
                await owner.update_checkpoint(advance(mark, sequence, str(sequence)))
            )
        taken = await granted(rival, claim(row, "0", "b"))
        assert (await checkpoints(rival))["0"].sequence == 2
        assert (await rows(owner))["0"].etag == taken.etag


async def test_a_concurrent_renewal_and_checkpoint_are_both_granted(
    storage: Storage, store: BlobLeaseStore
) -> None:
    row = await granted(store, claim(None, "0", "a"))
    mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    for sequence in range(10):
        outcomes, fields = await asyncio.gather(
            store.claim_ownership(GROUP, [renew(row)]),
            store.update_checkpoint(advance(mark, sequence, str(sequence))),
        )
        row, mark = row_of(outcomes[0]), checkpoint_of(fields)
    assert storage.proxy.requests["get blob"] == 0  # they run one after another


# -- requests -------------------------------------------------------------------------------------


async def test_a_cycle_costs_one_list_and_two_requests_per_row(
    storage: Storage, store: BlobLeaseStore
) -> None:
    asked = storage.proxy.requests
    outcomes = await store.claim_ownership(GROUP, [claim(None, p, "a") for p in PARTITIONS])
    assert asked == {"acquire lease": 4, "put blob": 4}
    for _ in range(2):
        storage.proxy.reset_counts()
        outcomes = await store.claim_ownership(GROUP, [renew(row_of(o)) for o in outcomes])
        assert asked == {"renew lease": 4, "put blob": 4}
        storage.proxy.reset_counts()
        assert len((await store.list_ownership(GROUP)).ownerships) == 4
        assert asked == {"list": 1}
    storage.proxy.reset_counts()
    checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    assert asked == {"put blob": 1}


async def test_only_changed_blobs_are_downloaded(storage: Storage, store: BlobLeaseStore) -> None:
    async with open_store(storage) as other:
        outcomes = await store.claim_ownership(GROUP, [claim(None, p, "a") for p in PARTITIONS])
        await other.list_ownership(GROUP)
        storage.proxy.reset_counts()
        await store.claim_ownership(GROUP, [renew(row_of(outcomes[0]))])
        storage.proxy.reset_counts()
        assert len((await other.list_ownership(GROUP)).ownerships) == 4
        assert storage.proxy.requests == {"list": 1, "get blob": 1}


async def test_a_steal_costs_three_requests(storage: Storage, store: BlobLeaseStore) -> None:
    async with open_store(storage) as rival:
        await granted(store, claim(None, "0", "a"))
        row = (await rows(rival))["0"]
        storage.proxy.reset_counts()
        await granted(rival, claim(row, "0", "b"))
        assert storage.proxy.requests == {"change lease": 1, "renew lease": 1, "put blob": 1}


# -- lost responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "unsent", "busy"])
@pytest.mark.parametrize("asked", ["acquire lease", "put blob"])
async def test_a_claim_without_a_response_is_unknown(
    storage: Storage, store: BlobLeaseStore, asked: str, fate: Fault
) -> None:
    storage.proxy.inject(asked, fate)
    assert isinstance(await write(store, claim(None, "0", "a")), Unknown)
    assert storage.proxy.requests[asked] == 1
    written = (await rows(store)).get("0")
    assert (written is not None) == (asked == "put blob" and fate == "lost")
    storage.azurite.advance(LEASE_S + 1)  # the lease expires, whichever host holds it
    await granted(store, claim((await rows(store)).get("0"), "0", "a"))


@pytest.mark.parametrize("asked", ["renew lease", "put blob"])
async def test_a_renewal_without_a_response_is_unknown(
    storage: Storage, store: BlobLeaseStore, asked: str
) -> None:
    row = await granted(store, claim(None, "0", "a"))
    storage.proxy.inject(asked, "lost")
    assert isinstance(await write(store, renew(row)), Unknown)
    listed = (await rows(store))["0"]
    assert (listed.etag == row.etag) == (asked == "renew lease")
    await granted(store, renew(listed))


async def test_a_checkpoint_without_a_response_is_unknown(
    storage: Storage, store: BlobLeaseStore
) -> None:
    await granted(store, claim(None, "0", "a"))
    mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    storage.proxy.inject("put blob", "lost")
    assert isinstance(await store.update_checkpoint(advance(mark, 5, "50")), Unknown)
    assert (await checkpoints(store))["0"].sequence == 5


async def test_a_release_counts_even_if_the_lease_release_fails(
    storage: Storage, store: BlobLeaseStore
) -> None:
    row = await granted(store, claim(None, "0", "a"))
    storage.proxy.inject("release lease", "unsent")
    await granted(store, release(row))
    listed = (await rows(store))["0"]
    assert (listed.owner, listed.age_s) == ("", 0)
    storage.azurite.advance(LEASE_S + 1)
    await granted(store, claim((await rows(store))["0"], "0", "b"))


async def test_an_expired_row_can_be_released(storage: Storage, store: BlobLeaseStore) -> None:
    row = await granted(store, claim(None, "0", "a"))
    mark = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    storage.azurite.advance(LEASE_S + 1)
    mark = checkpoint_of(await store.update_checkpoint(advance(mark, 5, "50")))
    await granted(store, release(row))
    assert (await rows(store))["0"].owner == ""
    assert await checkpoints(store) == {"0": mark}


async def test_groups_with_a_common_prefix_are_separate(storage: Storage) -> None:
    async with open_store(storage) as store:
        for name in ("$Default", "$Default2", "$Def"):
            group = Group("ns", "hub", name)
            await granted(store, claim(None, "0", name), group)
            await store.beat(group, name)
        for name in ("$Default", "$Default2", "$Def"):
            group = Group("ns", "hub", name)
            assert (await rows(store, group))["0"].owner == name
            assert list(await members(store, group)) == [name]
