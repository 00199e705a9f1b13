"""The lag from every store, and a container that does not exist."""

from __future__ import annotations

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.lag.options import lag_options
from pumphouse.leases.model import Checkpoint, Group, Ownership
from pumphouse.leases.store_url import open_store, parse_store_url
from pumphouse.scaler.observed_lag import ObservedLag, ReadFailed
from tests.azurite.fixtures import Storage
from tests.azurite.server import KEY
from tests.lag.store_urls import store_url as store_url
from tests.leases.stores.blob.official_stores import raw_container


async def test_the_lag_from_every_store(store_url: str, storage: Storage) -> None:
    async with (
        EmbeddedHub({"orders": 2}) as hub,
        raw_container(storage.direct, storage.container),
        open_store(parse_store_url(store_url)) as store,
    ):
        connection = hub.connection_string("orders")
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(b"order")] * 5)
        key = Group(hub.authority, "orders")
        await store.claim_ownership(key, [Ownership("0", "anna", 1)])
        await store.update_checkpoint(Checkpoint(key, "0", 2, "2", 1))
        lag = ObservedLag(lag_options(connection, "", store_url))
        assert await lag.of("$Default") == (2, 0)
        await lag.close()


@pytest.mark.parametrize(
    "store", ["postgres://anna:s3cret@127.0.0.1:1/leases", "redis://anna:s3cret@127.0.0.1:1/0"]
)
async def test_a_server_that_does_not_respond(store: str) -> None:
    """The lag is unknown, not 0, and the password is in no message."""
    messages: list[str] = []
    async with EmbeddedHub({"orders": 1}) as hub:
        lag = ObservedLag(lag_options(hub.connection_string("orders"), "", store), messages.append)
        with pytest.raises(ReadFailed, match=r"^store: .*127\.0\.0\.1") as failed:
            await lag.of("$Default")
        await lag.close()
    assert "s3cret" not in "".join([str(failed.value), *messages])


async def test_a_container_that_is_missing(storage: Storage) -> None:
    messages: list[str] = []
    async with EmbeddedHub({"orders": 1}) as hub:
        store = f"{storage.direct};Container=not-there"
        lag = ObservedLag(lag_options(hub.connection_string("orders"), "", store), messages.append)
        with pytest.raises(ReadFailed, match=r"^store: .*not-there"):
            await lag.of("$Default")
        await lag.close()
    assert len(messages) == 1
    assert KEY not in messages[0]
