"""FixedPartitionProcessor from environment variables: from_env and get_or_create."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError, PermanentFailure
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.options import FixedPartitionOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run

CONNECTION = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh"
STORAGE = "AccountName=a;AccountKey=YQ==;BlobEndpoint=http://127.0.0.1:1/a"
BLOBS = {"STORAGE_CONNSTRING": STORAGE, "STORAGE_CONTAINER_NAME": "leases"}


def environment(connection: str, store: Path, **more: str) -> dict[str, str]:
    return {
        "INBOUND_EVENTHUB_CONNSTRING": connection,
        "INBOUND_EVENTHUB_CONSUMER_GROUP": "$Default",
        "ASSIGN_TO_X_PARTITIONS": "2",
        "PUMPHOUSE_STORE": f"sqlite:///{store}",
    } | more


async def test_a_fixed_processor_from_the_environment(tmp_path: Path) -> None:
    async with EmbeddedHub({HUB: 2}) as hub:
        environ = environment(
            hub.connection_string(HUB), tmp_path / "leases.db", INBOUND_EVENTHUB_MAX_BATCH_SIZE="7"
        )
        processor = FixedPartitionProcessor.from_env(environ=environ)
        received = asyncio.Event()

        @processor.on_batch
        async def handle(partition: PartitionClient, batch: list[Event]) -> None:
            received.set()

        async with processor, open_client(hub.connection_string(HUB)) as client:
            await (await client.sender("1")).send([Event(b"x")])
            async with asyncio.timeout(60):
                await received.wait()
        assert processor._engine.options.batch_events_max == 7


async def test_get_or_create_returns_one_processor_per_hub_and_group(tmp_path: Path) -> None:
    async with EmbeddedHub({HUB: 2, "another": 1}) as hub:
        environ = environment(hub.connection_string(HUB), tmp_path / "leases.db")
        first = FixedPartitionProcessor.get_or_create(environ=environ)
        assert FixedPartitionProcessor.get_or_create(environ=environ) is first
        for variable, value in (
            ("INBOUND_EVENTHUB_CONSUMER_GROUP", "other"),
            ("INBOUND_EVENTHUB_CONNSTRING", hub.connection_string("another")),
        ):
            other = FixedPartitionProcessor.get_or_create(environ={**environ, variable: value})
            assert other is not first
            assert FixedPartitionProcessor.get_or_create(environ=environ) is first
        await first.start()
        await first.stop()
        assert FixedPartitionProcessor.get_or_create(environ=environ) is not first
        for variable in ("ASSIGN_TO_X_PARTITIONS", "LEASE_FOR_X_SEC", "RENEW_EVERY_X_SEC"):
            wrong = {**environ, "INBOUND_EVENTHUB_CONSUMER_GROUP": "new", variable: "none"}
            with pytest.raises(OptionError, match=f"{variable} is 'none'"):
                FixedPartitionProcessor.get_or_create(environ=wrong)


@pytest.mark.parametrize("end", ["cancel", "give up"])
def test_get_or_create_makes_a_new_processor_after_the_old_one_has_ended(
    end: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            get_or_create = partial(
                FixedPartitionProcessor.get_or_create,
                environ=environment(env.connection, tmp_path, PUMPHOUSE_STORE="memory:"),
                clock=env.clock,
            )
            first = get_or_create()
            await first.start()
            assert get_or_create() is first
            if end == "cancel":
                running = asyncio.create_task(first.run())
                await until(lambda: first.owned)
                running.cancel()
                await asyncio.wait([running])
            else:
                await until(lambda: first.owned)
                env.hub.delete_hub(HUB)
                await until(lambda: first.stopped)
                env.hub.create_hub(HUB, 1)
            second = get_or_create()
            assert second is not first
            await second.start()
            await until(lambda: second.owned)
            await second.stop()
            with suppress(PermanentFailure):
                await first.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"INBOUND_EVENTHUB_CONNSTRING": ""}, "INBOUND_EVENTHUB_CONNSTRING is not set"),
        ({"ASSIGN_TO_X_PARTITIONS": ""}, "ASSIGN_TO_X_PARTITIONS is not set"),
        (
            {"ASSIGN_TO_X_PARTITIONS": "many"},
            "ASSIGN_TO_X_PARTITIONS is 'many'; it must be a whole",
        ),
        ({"ASSIGN_TO_X_PARTITIONS": "0"}, "ASSIGN_TO_X_PARTITIONS must be at least 1"),
        ({"INBOUND_EVENTHUB_MAX_BATCH_SIZE": "0"}, "BATCH_SIZE must be at least 1 \\(got 0\\)"),
        ({"LEASE_FOR_X_SEC": "soon"}, "LEASE_FOR_X_SEC is 'soon'; it must be a number of seconds"),
        (
            {"LEASE_FOR_X_SEC": "30", "RENEW_EVERY_X_SEC": "15"},
            "LEASE_FOR_X_SEC must be at least 3 x RENEW_EVERY_X_SEC",
        ),
        ({"LEASE_FOR_X_SEC": "nan"}, "LEASE_FOR_X_SEC must be above 0 \\(got nan\\)"),
        ({"LEASE_FOR_X_SEC": "inf"}, "LEASE_FOR_X_SEC must be finite \\(got inf\\)"),
        ({"LEASE_FOR_X_SEC": "90"} | BLOBS, "LEASE_FOR_X_SEC must be 15 to 60 \\(got 90.0\\)"),
        (
            {"LEASE_FOR_X_SEC": "90", "PUMPHOUSE_STORE": "bloblease://account/leases"},
            "LEASE_FOR_X_SEC must be 15 to 60",
        ),
        ({"PUMPHOUSE_STORE": ""}, "STORAGE_CONNSTRING is not set"),
    ],
)
def test_an_invalid_environment_is_refused(
    change: dict[str, str], why: str, tmp_path: Path
) -> None:
    environ = environment(CONNECTION, tmp_path / "leases.db") | change
    with pytest.raises(OptionError, match=why):
        FixedPartitionProcessor.from_env(environ=environ)


@pytest.mark.parametrize(
    "stored", [BLOBS, {"PUMPHOUSE_STORE": f"bloblease:{STORAGE};Container=leases"}]
)
async def test_keywords_replace_variables_for_the_store_too(
    stored: dict[str, str], tmp_path: Path
) -> None:
    environ = environment(CONNECTION, tmp_path / "leases.db", LEASE_FOR_X_SEC="45") | stored
    processor = FixedPartitionProcessor.from_env(environ=environ, lease_s=30, renew_s=10)
    store: Any = processor.engine.store
    assert (processor.engine.options.lease_s, store.lease_s) == (30, 30)


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"lease_s": 90}, "^lease_s must be 15 to 60"),
        ({"lease_s": 30}, "^lease_s must be at least 3 x RENEW_EVERY_X_SEC"),
        ({"renew_s": 30}, "^LEASE_FOR_X_SEC must be at least 3 x renew_s"),
    ],
)
def test_an_error_names_the_keyword_that_replaces_a_variable(
    keywords: dict[str, Any], why: str, tmp_path: Path
) -> None:
    environ = environment(CONNECTION, tmp_path / "leases.db") | BLOBS
    with pytest.raises(OptionError, match=why):
        FixedPartitionProcessor.from_env(environ=environ, **keywords)


def test_a_fixed_processor_takes_the_variables_of_the_other_apis() -> None:
    environ = {
        "EVENT_HUB_CONN_STR": CONNECTION,
        "PUMPHOUSE_GROUP": "audit",
        "PUMPHOUSE_HOST": "vm-1",
        "PUMPHOUSE_STORE": "memory:",
        "ASSIGN_TO_X_PARTITIONS": "2",
    }
    processor = FixedPartitionProcessor.from_env(environ=environ)
    assert (processor.engine._group_name, processor.host) == ("audit", "vm-1")
    assert isinstance(processor.engine.store, MemoryStore)
    store = MemoryStore()
    processor = FixedPartitionProcessor.from_env(
        environ=environ,
        store=store,
        group="readers",
        host="vm-2",
        partitions=3,
        options=FixedPartitionOptions(lease_s=90),
    )
    assert processor.engine.store is store
    assert (processor.engine._group_name, processor.host) == ("readers", "vm-2")
    assert processor.engine.options.lease_s == 90


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        ("Endpoint=sb://h/", "^INBOUND_EVENTHUB_CONNSTRING: .*connection string"),
        (CONNECTION.replace(";EntityPath=eh", ""), "^INBOUND_EVENTHUB_CONNSTRING: .*EntityPath"),
    ],
)
def test_an_invalid_connection_string_is_refused_by_the_name_of_its_variable(
    connection: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=why):
        FixedPartitionProcessor.from_env(environ=environment(connection, tmp_path / "leases.db"))
