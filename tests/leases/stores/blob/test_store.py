"""BlobStore on a real Azurite: its requests, lost responses and errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Ownership,
    Refused,
    Unknown,
    advance,
    claim,
    nominate,
    release,
    renew,
    stamp,
)
from pumphouse.leases.stores.blob.members import KEPT_S
from pumphouse.leases.stores.blob.store import BlobStore
from tests.azurite.fixtures import Storage
from tests.azurite.proxy import Fault
from tests.azurite.server import ACCOUNT, KEY
from tests.leases.contract.calls import (
    checkpoint_of,
    checkpoints,
    granted,
    members,
    row_of,
    rows,
    write,
)
from tests.leases.contract.stores import GROUP
from tests.leases.stores.blob.official_stores import put, raw_container


def open_store(storage: Storage, connection_string: str = "", **options: object) -> BlobStore:
    return BlobStore.from_connection_string(
        connection_string or storage.connection_string,
        storage.container,
        create_container=True,
        clock=storage.azurite.clock,
        **{"timeout_s": 60, **options},
    )


@pytest.fixture
async def store(storage: Storage) -> AsyncIterator[BlobStore]:
    async with open_store(storage) as store:
        storage.proxy.reset_counts()
        yield store


# -- requests -------------------------------------------------------------------------------------


async def test_a_cycle_costs_one_list_and_one_request_per_row(
    storage: Storage, store: BlobStore
) -> None:
    asked = storage.proxy.requests
    outcomes = await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(16)])
    assert asked == {"put blob": 16}
    await store.beat(GROUP, "a")
    assert asked == {"put blob": 17}
    for _ in range(2):
        storage.proxy.reset_counts()
        renewals = [renew(row_of(outcome)) for outcome in outcomes]
        outcomes = await store.claim_ownership(GROUP, renewals)
        listing = await store.list_ownership(GROUP)
        await store.beat(GROUP, "a")
        assert (len(listing.ownerships), len(listing.members)) == (16, 1)
        assert asked == {"set metadata": 17, "list": 1}


async def test_a_checkpoint_costs_one_request_after_the_first(
    storage: Storage, store: BlobStore
) -> None:
    """A stamp and a first position once per partition; then one request each."""
    asked = storage.proxy.requests
    await store.list_checkpoints(GROUP)  # lists mixed case, once
    storage.proxy.reset_counts()
    stored = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    assert asked == {"put blob": 1, "head blob": 1}
    storage.proxy.reset_counts()
    stored = checkpoint_of(await store.update_checkpoint(advance(stored, 1, "10")))
    assert asked == {"set metadata": 1, "put blob": 1}
    storage.proxy.reset_counts()
    for sequence in (2, 3):
        stored = checkpoint_of(
            await store.update_checkpoint(advance(stored, sequence, f"{sequence}0"))
        )
    checkpoint_of(await store.update_checkpoint(stamp(stored, GROUP, "0", 2)))
    assert asked == {"set metadata": 3}
    storage.proxy.reset_counts()
    assert len(await store.list_checkpoints(GROUP)) == 1
    assert asked == {"list": 1}


async def test_concurrent_requests_are_bounded(storage: Storage) -> None:
    async with open_store(storage, at_once=3) as store:
        await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(20)])
        assert storage.proxy.most_at_once <= 3
    async with open_store(storage, at_once=32) as store:
        listed = (await store.list_ownership(GROUP)).ownerships
        assert all(isinstance(o, Granted) for o in await store.claim_ownership(GROUP, listed))
        assert storage.proxy.most_at_once > 3


async def test_a_long_listing_is_read_page_by_page(storage: Storage, store: BlobStore) -> None:
    """Ages are computed by the Date of a row's page."""
    requested = [claim(None, str(n), "a") for n in range(30)]
    await store.claim_ownership(GROUP, requested)
    storage.proxy.reset_counts()
    pages = store._container.list("", limit=7)
    assert len([listed_rows async for listed_rows in pages]) == 30
    assert storage.proxy.requests == {"list": 5}


# -- lost responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "unsent", "busy"])
async def test_a_renewal_without_a_response_is_unknown(
    storage: Storage, store: BlobStore, fate: Fault
) -> None:
    """It is sent once: a second request would be refused because of the first one's etag."""
    row = await granted(store, claim(None, "0", "a"))
    storage.proxy.reset_counts()
    storage.proxy.inject("set metadata", fate)
    outcome = await write(store, renew(row))
    assert isinstance(outcome, Unknown)
    assert storage.container in outcome.why
    assert storage.proxy.requests == {"set metadata": 1}
    listed = (await rows(store))["0"]
    assert (listed.etag == row.etag) == (fate != "lost")
    await granted(store, renew(listed))


@pytest.mark.parametrize("fate", ["lost", "unsent", "busy"])
async def test_a_first_claim_without_a_response_is_unknown(
    storage: Storage, store: BlobStore, fate: Fault
) -> None:
    await store.list_ownership(GROUP)  # the second use of a connection
    storage.proxy.reset_counts()
    storage.proxy.inject("put blob", fate)
    assert isinstance(await write(store, claim(None, "0", "a")), Unknown)
    assert storage.proxy.requests == {"put blob": 1}
    assert list(await rows(store)) == (["0"] if fate == "lost" else [])


@pytest.mark.parametrize("fate", ["lost", "unsent", "busy"])
@pytest.mark.parametrize("asked", ["put blob", "head blob", "set metadata"])
async def test_a_checkpoint_without_a_response_is_unknown(
    storage: Storage, store: BlobStore, asked: str, fate: Fault
) -> None:
    stored = stamp(None, GROUP, "0", 1)
    if asked == "set metadata":
        stored = advance(checkpoint_of(await store.update_checkpoint(stored)), 5, "50")
    for _ in range(2 if asked == "head blob" and fate != "busy" else 1):
        storage.proxy.inject(asked, fate)  # a read is sent again
    assert isinstance(await store.update_checkpoint(stored), Unknown)
    listed_rows = (await checkpoints(store)).get("0")
    assert listed_rows is None or not listed_rows.has_position
    again = stamp(listed_rows, GROUP, "0", 2)
    assert isinstance(await store.update_checkpoint(again), Granted)


async def test_a_first_position_with_a_lost_response_is_written(
    storage: Storage, store: BlobStore
) -> None:
    stored = checkpoint_of(await store.update_checkpoint(stamp(None, GROUP, "0", 1)))
    storage.proxy.inject("put blob", "lost")
    requested = advance(stored, 5, "50")
    assert isinstance(await store.update_checkpoint(requested), Unknown)
    assert (await checkpoints(store))["0"].sequence == 5
    assert isinstance(await store.update_checkpoint(requested), Refused)


async def test_one_lost_response_among_many_leaves_the_other_outcomes(
    storage: Storage, store: BlobStore
) -> None:
    storage.proxy.inject("put blob", "lost")
    outcomes = await store.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(8)])
    kinds = [type(outcome) for outcome in outcomes]
    assert sorted(kinds, key=str) == [Granted] * 7 + [Unknown]
    assert len(await rows(store)) == 8


async def test_a_response_after_the_deadline_is_ignored(storage: Storage) -> None:
    async with open_store(storage) as store:
        store._container._timeout_s = 0.05  # after opening, which may be slow on a busy machine
        storage.proxy.inject_always("late")
        outcome = await write(store, claim(None, "0", "a"))
        assert isinstance(outcome, Unknown)
        assert "TimeoutError" in outcome.why
        with pytest.raises(StoreUnavailable, match="no response"):
            await store.list_ownership(GROUP)
        storage.proxy.inject_always(None)


async def test_a_read_that_fails_can_be_repeated(storage: Storage, store: BlobStore) -> None:
    storage.proxy.inject_always("busy")
    with pytest.raises(StoreUnavailable, match="503 ServerBusy"):
        await store.list_ownership(GROUP)
    storage.proxy.inject_always(None)
    await store.list_ownership(GROUP)


# -- races ----------------------------------------------------------------------------------------


async def test_one_of_eight_racing_writers_is_granted(storage: Storage) -> None:
    async with open_store(storage, storage.direct) as store:
        for partition in map(str, range(10)):
            requested = [claim(None, partition, f"host-{n}") for n in range(8)]
            row = await one_winner(store, requested)
            row = await one_winner(store, [claim(row, partition, f"host-{n}") for n in range(8)])
            await one_winner(store, [nominate(row, f"other-{n}", 9.0) for n in range(8)])


async def one_winner(store: BlobStore, requested: list[Ownership]) -> Ownership:
    outcomes = await asyncio.gather(*(write(store, row) for row in requested))
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 7
    (won,) = [outcome.row for outcome in outcomes if isinstance(outcome, Granted)]
    assert (await rows(store))[won.partition].etag == won.etag
    return won


async def test_a_fenced_owner_cannot_write_its_first_checkpoint(storage: Storage) -> None:
    async with open_store(storage) as old, open_store(storage) as new:
        stored = checkpoint_of(await old.update_checkpoint(stamp(None, GROUP, "0", 1)))
        current = (await checkpoints(new))["0"]
        checkpoint_of(await new.update_checkpoint(stamp(current, GROUP, "0", 2)))
        assert isinstance(await old.update_checkpoint(advance(stored, 5, "50")), Refused)
        listed_rows = (await checkpoints(new))["0"]
        assert (listed_rows.epoch, listed_rows.has_position) == (2, False)


# -- forgetting -----------------------------------------------------------------------------------


async def test_an_administrator_may_remove_a_position(store: BlobStore) -> None:
    stored = checkpoint_of(await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 3)))
    blank = Checkpoint(GROUP, "0", epoch=3, etag=stored.etag)
    with pytest.raises(CheckpointRefused, match="go back"):
        await store.update_checkpoint(blank)
    bare = checkpoint_of(await store.update_checkpoint(blank, rewind=True))
    assert await checkpoints(store) == {"0": bare}
    assert not bare.has_position
    assert isinstance(await store.update_checkpoint(advance(stored, 6, "60")), Refused)
    checkpoint_of(await store.update_checkpoint(advance(bare, 0, "0")))


async def test_abandoned_member_records_are_deleted(storage: Storage, store: BlobStore) -> None:
    for n in range(3):
        await store.beat(GROUP, f"crashed-{n}")
    storage.azurite.advance(KEPT_S + 60)
    await store.beat(GROUP, "a")
    assert list(await members(store)) == ["a"]
    storage.proxy.reset_counts()
    await store.beat(GROUP, "a")
    assert storage.proxy.requests == {"set metadata": 1, "delete blob": 3}
    await store.beat(GROUP, "crashed-0")  # it was only frozen
    assert sorted(await members(store)) == ["a", "crashed-0"]


async def test_a_member_record_has_its_limit(store: BlobStore) -> None:
    await store.beat(GROUP, "a", 4)
    await store.beat(GROUP, "b")
    listed_rows = await members(store)
    assert [listed_rows[name].max_partitions for name in "ab"] == [4, None]


async def test_other_blobs_are_ignored(storage: Storage, store: BlobStore) -> None:
    async with raw_container(storage.direct, storage.container) as raw:
        for name in ("ownership/0/deeper", "lease/0", "readme.txt"):
            await put(raw, f"{str(GROUP).lower()}/{name}", {"ownerid": "x", "offset": "1"})
    assert await rows(store) == {}
    assert await checkpoints(store) == {}


# -- errors ---------------------------------------------------------------------------------------


async def test_a_missing_container_is_named_with_advice(storage: Storage) -> None:
    store = BlobStore.from_connection_string(storage.direct, storage.container)
    with pytest.raises(StoreError, match="404 ContainerNotFound: create it, or open the store"):
        await store.__aenter__()
    with pytest.raises(StoreError, match="is not open: use it inside `async with store:`"):
        await store.list_ownership(GROUP)


async def test_a_container_deleted_in_use_raises(storage: Storage, store: BlobStore) -> None:
    row = await granted(store, claim(None, "0", "a"))
    async with raw_container(storage.direct, storage.container) as raw:
        await raw.delete_container()
    for requested in (renew(row), release(row), claim(None, "1", "a")):
        with pytest.raises(StoreError, match="ContainerNotFound"):
            await write(store, requested)
    with pytest.raises(StoreError, match="ContainerNotFound"):
        await store.update_checkpoint(stamp(None, GROUP, "0", 1))
    with pytest.raises(StoreError, match="ContainerNotFound"):
        await store.beat(GROUP, "a")


async def test_an_unreachable_account_is_named_without_the_key(storage: Storage) -> None:
    connection_string = storage.azurite.connection_string(1)
    store = BlobStore.from_connection_string(connection_string, storage.container, timeout_s=60)
    with pytest.raises(
        StoreUnavailable, match=r"no response from http://127\.0\.0\.1:1/"
    ) as raised:
        await store.__aenter__()
    assert KEY not in str(raised.value) + repr(store)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_a_wrong_key_is_not_repeated_in_the_error(storage: Storage, store: BlobStore) -> None:
    wrong = storage.direct.replace(KEY, "c2VjcmV0" * 10 + "c2VjcmU=")
    with pytest.raises(StoreError, match="403") as raised:
        await BlobStore.from_connection_string(wrong, storage.container).__aenter__()
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize("connection_string", ["", "nonsense", "AccountKey=c2VjcmV0", "a=b;;"])
def test_an_invalid_connection_string_is_refused_by_the_constructor(connection_string: str) -> None:
    with pytest.raises(OptionError, match="is invalid") as raised:
        BlobStore.from_connection_string(connection_string, "checkpoints")
    assert "c2VjcmV0" not in str(raised.value)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"at_once": 0}])
def test_an_option_out_of_bounds_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))} must be"):
        BlobStore.from_connection_string("UseDevelopmentStorage=true", "checkpoints", **options)


def test_missing_packages_are_named() -> None:
    program = """
import sys
sys.modules["azure.storage.blob.aio"] = None
from pumphouse.leases.stores.blob.store import BlobStore
from pumphouse.errors import OptionError
try:
    BlobStore("https://x.blob.core.windows.net", "checkpoints")
except OptionError as error:
    assert "pip install 'pumphouse[azure]'" in str(error)
else:
    raise SystemExit("no error")
assert "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


# -- credentials ----------------------------------------------------------------------------------


def signature(storage: Storage, **allowed: bool) -> str:
    return generate_container_sas(
        ACCOUNT,
        storage.container,
        account_key=KEY,
        permission=ContainerSasPermissions(list=True, read=True, **allowed),
        # Azurite's clock is ahead of ours by what earlier tests advanced it.
        expiry=datetime.fromtimestamp(storage.azurite.clock.now(), UTC) + timedelta(days=365),
    )


async def test_a_signature_is_accepted_in_the_url_or_as_credential(
    storage: Storage, store: BlobStore
) -> None:
    url = f"http://127.0.0.1:{storage.proxy.port}/{ACCOUNT}"
    operation = signature(storage, write=True, create=True, delete=True)
    given: list[tuple[str, object]] = [
        (f"{url}?{operation}", None),
        (url, AzureSasCredential(operation)),
        (url, AzureNamedKeyCredential(ACCOUNT, KEY)),
        (url, operation),
    ]
    for partition, (account_url, credential) in enumerate(given):
        async with BlobStore(account_url, storage.container, credential, timeout_s=60) as signed:
            row = await granted(signed, claim(None, str(partition), "a"))
            await granted(signed, renew(row))
            assert "sig=" not in repr(signed)


async def test_a_read_only_signature_is_refused_with_advice(
    storage: Storage, store: BlobStore
) -> None:
    url = f"http://127.0.0.1:{storage.proxy.port}/{ACCOUNT}"
    operation = signature(storage)
    async with BlobStore(f"{url}?{operation}", storage.container, timeout_s=60) as reader:
        assert await rows(reader) == {}
        with pytest.raises(StoreError, match="403") as raised:
            await write(reader, claim(None, "0", "a"))
        assert "sig=" not in str(raised.value)
        storage.proxy.inject_always("busy")
        with pytest.raises(StoreError) as unresponsive:
            await reader.list_ownership(GROUP)
        assert "sig=" not in str(unresponsive.value)
        storage.proxy.inject_always(None)


# -- open and close -------------------------------------------------------------------------------


async def test_several_hosts_of_a_process_share_one_store(
    storage: Storage, store: BlobStore
) -> None:
    async with store, store:
        await granted(store, claim(None, "0", "a"))
    assert list(await rows(store)) == ["0"]


async def test_a_closed_store_can_be_opened_again(storage: Storage) -> None:
    store = open_store(storage)
    for turn in range(2):
        async with store:
            await granted(store, claim(None, str(turn), "a"))
    with pytest.raises(StoreError, match="not open"):
        await store.list_ownership(GROUP)


async def test_a_cancelled_write_leaves_the_store_usable(
    storage: Storage, store: BlobStore
) -> None:
    storage.proxy.inject_always("late")
    writing = asyncio.ensure_future(write(store, claim(None, "0", "a")))
    storage.proxy.arrived.clear()
    await storage.proxy.arrived.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    storage.proxy.inject_always(None)
    await granted(store, claim(None, "1", "a"))
