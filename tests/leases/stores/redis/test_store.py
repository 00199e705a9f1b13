"""RedisStore: its URL, its keys, and what it refuses."""

from __future__ import annotations

import time
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.hub.listeners.certificates import make_authority, make_server_certificate
from pumphouse.leases.model import (
    Checkpoint,
    Group,
    Ownership,
    claim,
    nominate,
    renew,
)
from pumphouse.leases.store import Change, SupportsChanges, SupportsGroups
from pumphouse.leases.store_url import open_store
from pumphouse.leases.stores.limits import NAME_CHARS_MAX, ROWS_MAX, VALUE_BYTES_MAX
from pumphouse.leases.stores.redis.address import parse_address
from pumphouse.leases.stores.redis.changes import read_change
from pumphouse.leases.stores.redis.scripts import Keys
from pumphouse.leases.stores.redis.store import RedisStore
from tests.leases.contract.calls import checkpoints, first, granted, rows
from tests.leases.contract.server_stores import check_a_fork_is_refused, check_changes_name_hosts
from tests.leases.contract.stores import GROUP
from tests.postgres.proxy import PASSWORD
from tests.redis.server import RedisServer, free_port

SECRET = "topsecret"
HUGE_BYTES = 10_000_000


@pytest.fixture
def prefix() -> str:
    return f"t_{uuid.uuid4().hex}"


@pytest.fixture
async def store(redis: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    async with RedisStore(redis.url(), prefix=prefix) as store:
        yield store


async def test_a_store_opens_by_its_url(redis: RedisServer, prefix: str) -> None:
    store = open_store(redis.url(database=3), prefix=prefix, deadline_s=60)
    assert isinstance(store, RedisStore)
    assert isinstance(store, SupportsChanges)
    assert isinstance(store, SupportsGroups)
    async with store:
        assert "open" in repr(store)
        await first(store)
    assert "closed" in repr(store)
    async with open_store(redis.url(database=4), prefix=prefix) as other:
        assert await rows(other) == {}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"redis://u:{SECRET}@h:port/0", "port must be"),
        (f"redis://u:{SECRET}@h:65536/0", "port must be"),
        (f"redis://u:{SECRET}@h:0/0", "port 0"),
        (f"redis://u:{SECRET}@[h/0", "port must be"),
        (f"redis://u:{SECRET}@/0", "no host"),
        (f"redis://u:{SECRET}@h/{SECRET}", "must be a number"),
        (f"redis://u:{SECRET}@h/0?password={SECRET}", "only parameter"),
        (f"redis://u:{SECRET}#x@h/0", "port must be|no host|%23"),
        (f"redis://u:{SECRET}@h/0?ca_file=x", "needs rediss"),
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        open_store(url)
    assert "redis://USER" in str(raised.value)
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r}"


def test_a_repr_has_neither_user_nor_password() -> None:
    store = open_store(f"rediss://usr:{SECRET}@db.example/2?ca_file=/ca.pem")
    assert repr(store) == "<RedisStore Redis database 2 at db.example:6379 | closed>"
    assert SECRET not in repr(parse_address(f"redis://usr:{SECRET}@h"))


def test_a_password_may_have_any_character() -> None:
    address = parse_address("redis://a%40b:p%2Fq%23r@h")
    assert (address.user, address.password) == ("a@b", "p/q#r")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": ""}, "prefix must have"),
        ({"prefix": "a{b}"}, "prefix must have"),
        ({"deadline_s": 0}, "deadline_s must be above 0"),
        ({"connections_max": 0}, "connections_max must be at least 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_store("redis://h", **options)


async def test_a_closed_store_refuses_calls(redis: RedisServer, prefix: str) -> None:
    store = RedisStore(redis.url(), prefix=prefix)
    with pytest.raises(StoreError, match="async with"):
        await store.list_ownership(GROUP)
    async with store, store:
        pass
    with pytest.raises(StoreError, match="async with"):
        await store.list_ownership(GROUP)


async def test_a_wrong_password_is_an_error_that_stays(redis: RedisServer) -> None:
    with pytest.raises(StoreError, match="check user and password") as raised:
        async with RedisStore(redis.url().replace(PASSWORD, SECRET)):
            pass
    assert not isinstance(raised.value, StoreUnavailable)
    assert SECRET not in str(raised.value)


async def test_missing_rights_are_named(redis: RedisServer, prefix: str) -> None:
    user = f"u_{uuid.uuid4().hex[:12]}"
    redis.administer("ACL", "SETUSER", user, "on", f">{SECRET}", f"~{prefix}:*", "+@all", "-hset")
    async with RedisStore(
        f"redis://{user}:{SECRET}@127.0.0.1:{redis.port}", prefix=prefix
    ) as store:
        with pytest.raises(StoreError, match="grant the user"):
            await first(store)
        assert await rows(store) == {}
        redis.administer("ACL", "SETUSER", user, "+hset", "resetchannels")
        # Without the right to publish, a row is written and nobody is notified.
        await granted(store, nominate(await first(store), "b", 30.0))
        with pytest.raises(StoreError, match="grant the user"):
            await anext(store.changes(GROUP))


async def test_a_server_that_may_remove_keys_is_refused(redis: RedisServer) -> None:
    with (
        RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server,
        pytest.raises(StoreError, match="use noeviction"),
    ):
        async with RedisStore(server.url()):
            pass


async def test_a_store_connects_by_tls(tmp_path: Path, prefix: str) -> None:
    authority = make_authority(now := time.time())
    certificate = make_server_certificate(authority, ["localhost"], now)
    pems = {"ca.pem": authority.certificate_pem, "cert.pem": certificate.certificate_pem}
    for name, pem in (pems | {"key.pem": certificate.key_pem}).items():
        (tmp_path / name).write_bytes(pem)
    port = free_port()
    options = {
        "tls-port": port,
        "tls-cert-file": tmp_path / "cert.pem",
        "tls-key-file": tmp_path / "key.pem",
        "tls-ca-cert-file": tmp_path / "ca.pem",
        "tls-auth-clients": "no",
    }
    words = [word for name in options for word in (f"--{name}", str(options[name]))]
    with RedisServer(*words) as server:
        url = server.url(port).replace("redis:", "rediss:").replace("127.0.0.1", "localhost")
        async with RedisStore(f"{url}?ca_file={tmp_path / 'ca.pem'}", prefix=prefix) as store:
            await first(store)
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            async with RedisStore(url):
                pass


@pytest.mark.parametrize(
    "row",
    [
        claim(None, "0", "a\ud800"),
        claim(None, "0", "a" * VALUE_BYTES_MAX),
        Ownership("0", "a", 2**63),
        Ownership("0", "a", 1, deadline_s=1e300),
        Ownership("0", "a", 1, rate=float("nan")),
    ],
)
async def test_a_row_that_cannot_be_stored_is_refused(store: RedisStore, row: Ownership) -> None:
    with pytest.raises(OptionError, match="cannot be stored"):
        await store.claim_ownership(GROUP, [claim(None, "1", "a"), row])
    assert await rows(store) == {}
    await first(store)  # the connection works


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("rows", "", "no Pumphouse has written it"),
        ("rows", "e 0 {", "no Pumphouse has written it"),
        ("rows", "e 0 []", "no Pumphouse has written it"),
        ("rows", "e x {}", "time"),
        ("rows", "e nan {}", "time"),
        ("rows", "e inf {}", "time"),
        ("rows", "e 0 " + "1" * 20_000, "no Pumphouse has written it"),
        ("rows", 'e 0 {"owner": 1, "state": ""}', "owner"),
        ("rows", 'e 0 {"owner": "a", "epoch": -1, "successor": "", "state": ""}', "epoch"),
        ("rows", b"\xff\xfe", "no Pumphouse has written it"),
        ("checkpoints", "e 0 0 {}", "epoch"),
        ("checkpoints", 'e 0 0 {"epoch": 1, "sequence": -7}', "sequence number"),
        ("checkpoints", 'e 0 0 {"epoch": 1, "offset": 5}', "offset"),
        ("limits", "many", "max_partitions"),
    ],
)
async def test_values_written_by_hand_are_checked(
    redis: RedisServer, prefix: str, store: RedisStore, kind: str, value: str, message: str
) -> None:
    await store.beat(GROUP, "0")
    redis.administer("HSET", getattr(Keys(prefix, GROUP), kind), "0", value)
    with pytest.raises(StoreError, match=f"'0' has the {message}|value .*{message}"):
        await store.list_ownership(GROUP)


async def test_the_longest_names_are_stored(store: RedisStore) -> None:
    """Also if each character is escaped in JSON."""
    owner, successor, offset = (each * NAME_CHARS_MAX for each in ("\1", "\2", "\3"))
    await store.claim_ownership(
        GROUP, [Ownership("0", owner, 1, successor=successor, deadline_s=1.0)]
    )
    stored = (await rows(store))["0"]
    assert (stored.owner, stored.successor) == (owner, successor)
    await store.update_checkpoint(Checkpoint(GROUP, "0", 7, offset, 1))
    assert (await checkpoints(store))["0"].offset == offset


async def test_the_time_of_a_member_must_be_finite(
    redis: RedisServer, prefix: str, store: RedisStore
) -> None:
    redis.administer("ZADD", Keys(prefix, GROUP).beats, "inf", "a")
    with pytest.raises(StoreError, match="the member 'a' has the time 'inf'"):
        await store.list_ownership(GROUP)


@pytest.mark.parametrize("kind", ["rows", "checkpoints", "limits"])
async def test_a_huge_value_is_not_loaded(
    redis: RedisServer, prefix: str, store: RedisStore, kind: str
) -> None:
    keys = Keys(prefix, GROUP)
    await first(store)
    await store.beat(GROUP, "0")
    redis.administer("HSET", getattr(keys, kind), "0", "e 0 - " + "x" * HUGE_BYTES)
    tracemalloc.start()
    with pytest.raises(StoreError, match="'0' has the"):
        await store.list_ownership(GROUP)
    if kind == "rows":
        with pytest.raises(StoreError, match="'0' has the"):
            await store.claim_ownership(GROUP, [claim(None, "0", "b")])
    if kind == "checkpoints":
        with pytest.raises(StoreError, match="'0' has the"):
            await store.list_checkpoints(GROUP)
        with pytest.raises(StoreError, match="'0' has the"):
            await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < HUGE_BYTES / 4


@pytest.mark.parametrize("kind", ["checkpoints", "groups"])
async def test_more_rows_than_any_hub_has_are_not_loaded(
    redis: RedisServer, prefix: str, store: RedisStore, kind: str
) -> None:
    key, names = getattr(Keys(prefix, GROUP), kind), [str(name) for name in range(ROWS_MAX + 1)]
    if kind == "groups":
        redis.administer("SADD", key, *names)
        reading: Any = store.groups(GROUP.namespace, GROUP.hub)
    else:
        redis.administer("HSET", key, *(word for name in names for word in (name, "e 0 - {}")))
        reading = store.list_ownership(GROUP)
    with pytest.raises(StoreError, match="TOOMANY"):
        await reading


async def test_a_value_that_cannot_be_read_is_never_overwritten(
    redis: RedisServer, prefix: str, store: RedisStore
) -> None:
    keys = Keys(prefix, GROUP)
    for key in (keys.rows, keys.checkpoints):
        redis.administer("HSET", key, "0", " ")
    with pytest.raises(StoreError):
        await first(store)
    with pytest.raises(StoreError):
        await store.update_checkpoint(Checkpoint(GROUP, "0", 5, "50", 1))
    for key in (keys.rows, keys.checkpoints):
        assert redis.administer("HGET", key, "0") == b" "


async def test_large_epochs_and_positions_are_compared_exactly(store: RedisStore) -> None:
    """Numbers of Lua are exact to 2^53 only."""
    large = 2**61
    outcome = await store.update_checkpoint(Checkpoint(GROUP, "0", large, "x", large))
    for back in (
        Checkpoint(GROUP, "0", large - 1, "x", large),
        Checkpoint(GROUP, "0", large, "x", large - 1),
    ):
        with pytest.raises(CheckpointRefused):
            await store.update_checkpoint(
                Checkpoint(GROUP, "0", back.sequence, "x", back.epoch, outcome.row.etag)  # type: ignore[union-attr]
            )
    assert (await checkpoints(store))["0"].sequence == large


async def test_old_member_records_are_removed(
    redis: RedisServer, prefix: str, store: RedisStore
) -> None:
    await store.beat(GROUP, "old", 3)
    redis.administer("ZINCRBY", Keys(prefix, GROUP).beats, -25 * 3600 * 1_000_000, "old")
    await store.beat(GROUP, "new", 2)
    members = (await store.list_ownership(GROUP)).members
    assert [(member.name, member.max_partitions) for member in members] == [("new", 2)]
    assert redis.administer("HLEN", Keys(prefix, GROUP).limits) == 1


async def test_a_clock_that_is_set_back_gives_no_negative_age(
    redis: RedisServer, prefix: str, store: RedisStore
) -> None:
    await first(store)
    await store.beat(GROUP, "a")
    keys = Keys(prefix, GROUP)
    redis.administer("ZINCRBY", keys.beats, 3600 * 1_000_000, "a")
    etag, written, value = redis.administer("HGET", keys.rows, "0").decode().split(" ", 2)
    redis.administer("HSET", keys.rows, "0", f"{etag} {int(written) + 3_600_000_000} {value}")
    listing = await store.list_ownership(GROUP)
    assert [row.age_s for row in listing.ownerships] == [0]
    assert [member.age_s for member in listing.members] == [0]


async def test_names_of_groups_cannot_collide(store: RedisStore) -> None:
    groups = [
        Group("n", "h", "a:rows"),
        Group("n", "h:a", "rows"),
        Group("n", "h", "a"),
        Group("n", "h}", "{a"),
    ]
    for number, group in enumerate(groups):
        await granted(store, claim(None, "0", f"host-{number}"), group)
    for number, group in enumerate(groups):
        assert (await rows(store, group))["0"].owner == f"host-{number}"
    assert await store.groups("N", "H") == {"a:rows", "a"}


async def test_a_server_that_forgets_scripts_gets_them_again(
    redis: RedisServer, store: RedisStore
) -> None:
    row = await first(store)
    redis.administer("SCRIPT", "FLUSH")
    await granted(store, renew(row))


async def test_a_store_is_not_used_after_a_fork(redis: RedisServer, prefix: str) -> None:
    await check_a_fork_is_refused(redis.url(), prefix=prefix)


# -- notifications --------------------------------------------------------------------------------


async def test_changes_name_the_hosts_that_they_concern(
    redis: RedisServer, prefix: str, store: RedisStore
) -> None:
    async with RedisStore(redis.url(), prefix=prefix) as other:
        await check_changes_name_hosts(store, other)


@pytest.mark.parametrize("payload", [b"", b"x", b"[1]", b"{}", b"[" * 100_000, b"\xff"])
def test_a_payload_that_cannot_be_read_concerns_everyone(payload: bytes) -> None:
    assert read_change(payload) == Change()
