"""PostgresStore: its tables, its URL, and what it refuses."""

from __future__ import annotations

import asyncio
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from pumphouse.errors import OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Ownership,
    claim,
)
from pumphouse.leases.store import Change, SupportsChanges
from pumphouse.leases.store_url import open_store
from pumphouse.leases.stores.limits import NAME_CHARS_MAX
from pumphouse.leases.stores.postgres.changes import read_change
from pumphouse.leases.stores.postgres.schema import Statements
from pumphouse.leases.stores.postgres.store import PostgresStore
from tests.leases.contract.calls import first, rows
from tests.leases.contract.server_stores import check_a_fork_is_refused, check_changes_name_hosts
from tests.leases.contract.stores import GROUP
from tests.postgres.server import PostgresServer

SECRET = "topsecret"
HUGE_BYTES = 20_000_000
HUGE = f"repeat('a', {HUGE_BYTES})"


@pytest.fixture
def schema() -> str:
    return f"t_{uuid.uuid4().hex}"


@pytest.fixture
async def store(postgres: PostgresServer, schema: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres.shared(), schema=schema) as store:
        yield store


def administer(postgres: PostgresServer, *statements: str) -> None:
    with psycopg.connect(postgres.shared(), autocommit=True) as administrator:
        for statement in statements:
            administrator.execute(statement)


async def test_a_store_opens_by_its_url(postgres: PostgresServer, schema: str) -> None:
    for text in (postgres.shared(), postgres.shared().replace("postgresql:", "postgres:")):
        store = open_store(text, schema=schema, deadline_s=60)
        assert isinstance(store, PostgresStore)
        assert isinstance(store, SupportsChanges)
        async with store:
            assert "open" in repr(store)
        assert "closed" in repr(store)


@pytest.mark.parametrize(
    "url",
    [
        f"postgres://u:{SECRET}%zz@h/x",
        f"postgres://u:{SECRET}@h/x?foo={SECRET}",
        f"postgres://u:{SECRET}@[h/x",
        f"postgres://u:{SECRET}@h:port/x",
        f"postgres://u:{SECRET}@h:65536/x",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(OptionError, match="postgres://USER") as raised:
        open_store(url)
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_a_repr_has_neither_user_nor_password() -> None:
    store = open_store(f"postgres://usr:{SECRET}@db.example:5433/leases?password={SECRET}")
    assert repr(store) == "<PostgresStore PostgreSQL database leases at db.example:5433 | closed>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": "x; DROP"}, "schema must be"),
        ({"schema": ""}, "schema must be"),
        ({"deadline_s": 0}, "deadline_s must be above 0"),
        ({"connections_max": 0}, "connections_max must be at least 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_store("postgres://h/x", **options)


async def test_a_closed_store_refuses_calls(postgres: PostgresServer, schema: str) -> None:
    store = PostgresStore(postgres.shared(), schema=schema)
    with pytest.raises(StoreError, match="async with"):
        await store.list_ownership(GROUP)
    async with store, store:
        pass
    with pytest.raises(StoreError, match="async with"):
        await store.list_ownership(GROUP)


async def test_hosts_create_the_tables_at_the_same_time(
    postgres: PostgresServer, schema: str
) -> None:
    async def open_and_list() -> int:
        async with PostgresStore(postgres.shared(), schema=schema, deadline_s=60) as store:
            return len((await store.list_ownership(GROUP)).ownerships)

    assert await asyncio.gather(*(open_and_list() for _ in range(6))) == [0] * 6


async def test_an_observer_creates_nothing(postgres: PostgresServer, schema: str) -> None:
    with pytest.raises(StoreUnavailable, match="does a consumer use it"):
        async with PostgresStore(postgres.shared(), schema=schema, create=False):
            pass
    with psycopg.connect(postgres.shared()) as administrator:
        query = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
        assert administrator.execute(query, (schema,)).fetchall() == [(0,)]


async def test_tables_of_a_later_version_are_refused(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    administer(postgres, f"UPDATE {schema}.store_version SET version = 99")
    with pytest.raises(StoreError, match="version 99"):
        async with PostgresStore(postgres.shared(), schema=schema):
            pass


async def test_removed_tables_are_an_error_that_stays(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    administer(postgres, f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(StoreError, match="removed or changed") as raised:
        await store.list_ownership(GROUP)
    assert not isinstance(raised.value, StoreUnavailable)


async def test_missing_rights_are_named(postgres: PostgresServer, schema: str) -> None:
    user = f"u_{uuid.uuid4().hex[:12]}"
    statements = Statements(schema).creation()
    administer(postgres, f"CREATE USER {user}", *statements)
    url = postgres.shared().replace("tests@", f"{user}@")
    with pytest.raises(StoreError, match="grant the user"):
        async with PostgresStore(url, schema=schema):
            pass
    administer(
        postgres,
        f"GRANT USAGE ON SCHEMA {schema} TO {user}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}",
    )
    async with PostgresStore(url, schema=schema) as store:
        await first(store)
        await store.beat(GROUP, "a")
        await store.leave(GROUP, "a")


@pytest.mark.parametrize(
    "row",
    [
        claim(None, "0", "a\0b"),
        claim(None, "0", "a\ud800"),
        claim(None, "0", "a" * (NAME_CHARS_MAX + 1)),
        Ownership("0", "a", 1, successor="b" * (NAME_CHARS_MAX + 1), deadline_s=1.0),
        Ownership("0", "a", 2**63),
        Ownership("0", "a", 1, deadline_s=1e300),
    ],
)
async def test_a_row_that_cannot_be_stored_is_refused(store: PostgresStore, row: Ownership) -> None:
    with pytest.raises(OptionError, match="cannot be stored"):
        await store.claim_ownership(GROUP, [claim(None, "1", "a"), row])
    assert await rows(store) == {}
    await first(store)  # the connection works


async def test_the_longest_names_are_stored(store: PostgresStore) -> None:
    owner, successor, offset = (each * NAME_CHARS_MAX for each in ("é", "ß", "7"))
    row = Ownership("0", owner, 1, successor=successor, deadline_s=1.0)
    await store.claim_ownership(GROUP, [row])
    stored = (await rows(store))["0"]
    assert (stored.owner, stored.successor) == (owner, successor)
    await store.update_checkpoint(Checkpoint(GROUP, "0", 7, offset, 1))
    assert (await store.list_checkpoints(GROUP))[0].offset == offset
    with pytest.raises(OptionError, match=r"a checkpoint cannot be stored: .* has the offset"):
        await store.update_checkpoint(Checkpoint(GROUP, "1", 7, f"{offset}7", 1))


async def test_values_written_by_hand_are_checked(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    await first(store)
    await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
    for table, change, message in (
        ("checkpoint", f"epoch = {2**63 - 1}", "epoch"),
        ("ownership", "epoch = -1", "epoch"),
        ("ownership", "epoch = 1, deadline_at = '9999-01-01'", "deadline"),
        ("ownership", "deadline_at = 'infinity'", "deadline"),
        ("ownership", "deadline_at = NULL, written_at = 'infinity'", "age"),
        ("ownership", f"written_at = now(), owner = {HUGE}", "owner 'aaaa"),
        ("ownership", f"owner = 'a', etag = {HUGE}", "etag 'aaaa"),
        ("ownership", f"etag = 'e', successor = {HUGE}", "successor 'aaaa"),
    ):
        administer(postgres, f"UPDATE {schema}.{table} SET {change}")
        with pytest.raises(StoreError, match=f"partition '0' has the {message}") as raised:
            await store.list_ownership(GROUP)
        assert len(str(raised.value)) < 300
    for change, message in (
        ("epoch = 1, sequence = -7", "sequence number -7"),
        (f"sequence = 7, event_offset = {HUGE}", "offset 'aaaa"),
        (f"event_offset = '7', etag = {HUGE}", "etag 'aaaa"),
    ):
        administer(postgres, f"UPDATE {schema}.checkpoint SET {change}")
        with pytest.raises(StoreError, match=message):
            await store.list_checkpoints(GROUP)


async def test_a_long_value_is_not_loaded(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    await first(store)
    administer(postgres, f"UPDATE {schema}.ownership SET owner = {HUGE}")
    tracemalloc.start()
    with pytest.raises(StoreError):
        await store.list_ownership(GROUP)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < HUGE_BYTES / 4


async def test_the_age_of_a_member_must_be_a_time(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    await store.beat(GROUP, "a")
    administer(postgres, f"UPDATE {schema}.member SET written_at = '-infinity'")
    with pytest.raises(StoreError, match="the member 'a' has the age"):
        await store.list_ownership(GROUP)


async def test_a_clock_that_is_set_back_gives_no_negative_age(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    await first(store)
    await store.beat(GROUP, "a")
    for table in ("ownership", "member"):
        administer(postgres, f"UPDATE {schema}.{table} SET written_at = now() + interval '1 hour'")
    listing = await store.list_ownership(GROUP)
    assert [row.age_s for row in listing.ownerships] == [0]
    assert [member.age_s for member in listing.members] == [0]


async def test_old_member_records_are_removed(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    await store.beat(GROUP, "old")
    administer(postgres, f"UPDATE {schema}.member SET written_at = now() - interval '25 hours'")
    await store.beat(GROUP, "new")
    assert [member.name for member in (await store.list_ownership(GROUP)).members] == ["new"]


async def test_a_store_is_not_used_after_a_fork(postgres: PostgresServer, schema: str) -> None:
    await check_a_fork_is_refused(postgres.shared(), schema=schema)


# -- notifications --------------------------------------------------------------------------------


async def test_changes_name_the_hosts_that_they_concern(
    postgres: PostgresServer, schema: str, store: PostgresStore
) -> None:
    async with PostgresStore(postgres.shared(), schema=schema) as other:
        await check_changes_name_hosts(store, other)


async def test_groups_do_not_notify_each_other(store: PostgresStore) -> None:
    channels = {Statements(name).channel(GROUP) for name in ("a", "b")}
    assert len(channels) == 2
    assert all(len(channel) <= 63 for channel in channels)


@pytest.mark.parametrize("payload", ["", "x", "[1]", "{}", "[" * 100_000])
def test_a_payload_that_cannot_be_read_concerns_everyone(payload: str) -> None:
    assert read_change(payload) == Change()
