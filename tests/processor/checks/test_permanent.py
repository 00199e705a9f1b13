"""Failures that do not pass by themselves end a host after a while."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from pumphouse.client.factory import open_client
from pumphouse.errors import (
    AuthError,
    ConnectionFailed,
    HubNotFound,
    OptionError,
    PermanentFailure,
    StoreError,
    StoreUnavailable,
)
from pumphouse.events import Event
from pumphouse.leases.model import Group, Ownership
from pumphouse.leases.store import ClaimOutcome
from pumphouse.processor.checks.permanent import PermanentFailures, is_permanent
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import (
    EventProcessorOptions,
    FixedPartitionOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.processor.reporting import FailureSeries
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.outage_store import FAST, OutageStore
from tests.processor.support.virtual_time import run

MISSING = HubNotFound("the hub is gone")


async def serve(partition: PartitionClient) -> None:
    async for _ in partition.batches():
        pass


def make_engine(env: HubAndStore, connection: str = "", **more: float | None) -> Engine:
    return Engine(
        connection or env.connection,
        serve,
        store=env.store,
        host="a",
        options=ProcessorOptions(**more),  # type: ignore[arg-type]
        clock=env.clock,
    )


async def ends_with(env: HubAndStore, engine: Engine) -> tuple[PermanentFailure, float]:
    """The error that run() raises, and after how many seconds."""
    started_s = env.clock.monotonic()
    with pytest.raises(PermanentFailure) as raised:
        async with asyncio.timeout(3600):
            await engine.run()
    took_s = env.clock.monotonic() - started_s
    with pytest.raises(PermanentFailure):
        await engine.stop()
    return raised.value, took_s


def test_a_deleted_hub_ends_the_host() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = make_engine(env)
            await engine.start()
            await until(lambda: engine.owned)
            env.hub.delete_hub(HUB)
            error, took_s = await ends_with(env, engine)
            assert isinstance(error.__cause__, HubNotFound)
            assert 300 <= took_s <= 400
            (row,) = (await env.store.list_ownership(env.group)).ownerships
            assert row.owner == ""

    run(scenario())


def test_a_deleted_group_ends_the_host_after_the_configured_time() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            env.hub.create_group(HUB, "readers")
            engine = Engine(
                env.connection,
                serve,
                group="readers",
                store=env.store,
                host="a",
                options=ProcessorOptions(give_up_s=60),
                clock=env.clock,
            )
            await engine.start()
            await until(lambda: engine.owned)
            env.hub.delete_group(HUB, "readers")
            error, took_s = await ends_with(env, engine)
            assert "ConsumerGroups/readers' could not be found" in str(error)
            assert re.match(
                r"a has stopped, because this failure has lasted for 6\d s: ", str(error)
            )
            assert 60 <= took_s <= 120

    run(scenario())


def test_a_group_that_is_created_again_in_time_is_read_on() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            env.hub.create_group(HUB, "readers")
            read: list[Event] = []

            async def record(partition: PartitionClient) -> None:
                async for batch in partition.batches():
                    read.extend(batch)

            engine = Engine(
                env.connection, record, group="readers", store=env.store, clock=env.clock
            )
            async with engine:
                await until(lambda: engine.owned)
                for _ in range(3):
                    env.hub.delete_group(HUB, "readers")
                    await asyncio.sleep(200)
                    env.hub.create_group(HUB, "readers")
                    await env.send("a")
                    before = len(read)
                    await until(lambda: len(read) > before)  # noqa: B023
                await asyncio.sleep(400)

    run(scenario())


def test_the_pull_api_raises_it_too() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            processor = Processor(env.connection, store=env.store, clock=env.clock)
            await processor.engine.start()
            await until(lambda: processor.owned)
            env.hub.delete_hub(HUB)
            with pytest.raises(PermanentFailure):
                async for _ in processor.partitions():
                    pass
            with pytest.raises(PermanentFailure):
                await processor.stop()

    run(scenario())


def test_a_token_that_expires_ends_the_host() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            token = env.hub.sas_token(HUB, lasts_s=100)
            signed = re.sub(
                "SharedAccessKeyName=.*?;SharedAccessKey=[^;]*",
                lambda _: f"SharedAccessSignature={token}",
                env.connection,
            )
            engine = Engine(
                lambda: open_client(signed), serve, store=env.store, host="a", clock=env.clock
            )
            await engine.start()
            error, took_s = await ends_with(env, engine)
            assert isinstance(error.__cause__, AuthError)
            assert 400 <= took_s <= 600

    run(scenario())


def test_none_retries_without_end() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            engine = make_engine(env, give_up_s=None)
            async with engine:
                await until(lambda: engine.owned)
                env.hub.delete_hub(HUB)
                await asyncio.sleep(3600)
                assert engine.owned == ("0",)

    run(scenario())


# -- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "error", "permanent"),
    [
        ("receive_failed", MISSING, True),
        ("hub_properties_failed", AuthError("revoked"), True),
        ("receive_failed", ConnectionFailed("refused"), False),
        ("handler_failed", MISSING, False),
        ("cycle_failed", StoreError("no container"), True),
        ("cycle_failed", StoreUnavailable("timed out"), False),
        ("cycle_failed", TimeoutError(), False),
    ],
)
def test_only_lasting_failures_are_permanent(event: str, error: Exception, permanent: bool) -> None:
    assert is_permanent(event, error) is permanent


def test_a_failure_must_last() -> None:
    failures = PermanentFailures("a", 60)
    key: tuple[str, str | None] = ("receive_failed", "0")
    current = {key: FailureSeries(MISSING)}
    assert failures.lasting(current, {"0"}, 0) is None
    assert failures.lasting(current, {"0"}, 59) is None
    current = {key: FailureSeries(MISSING)}  # after a success
    assert failures.lasting(current, {"0"}, 61) is None
    assert failures.lasting(current, {}, 70) is None  # lost to another host meanwhile
    assert failures.lasting(current, {"0"}, 80) is None
    assert failures.lasting(current, {"0"}, 140) is not None


@pytest.mark.parametrize(
    "options", [ProcessorOptions, EventProcessorOptions, FixedPartitionOptions]
)
def test_every_api_has_the_option(options: type) -> None:
    assert options(give_up_s=None).give_up_s is None
    with pytest.raises(OptionError, match="give_up_s must be above 0"):
        options(give_up_s=0)


@pytest.mark.parametrize("moment", ["while it is ours", "after the lease was lost"])
def test_a_failure_that_was_repaired_in_time_does_not_end_the_host(moment: str) -> None:
    """The partition is idle: no event shows that it is read again."""

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            env.hub.create_group(HUB, "readers")
            engine = Engine(
                env.connection,
                serve,
                store=store,
                group="readers",
                host="a",
                options=ProcessorOptions(give_up_s=60.0),
                clock=env.clock,
            )
            async with engine:
                await until(lambda: engine.owned)
                env.hub.delete_group(HUB, "readers")
                await until(lambda: engine.reporter.counts["receive_failed"])
                if moment == "after the lease was lost":
                    await store.outage(FAST, 40)
                env.hub.create_group(HUB, "readers")
                await asyncio.sleep(300)
                assert engine.owned == ("0",)
                assert not engine.reporter.failures

    run(scenario())


def test_a_store_that_rejects_writes_ends_the_host() -> None:
    class ReadOnly(OutageStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            if self.away:
                raise StoreError("403: this key may not write")
            return await self.inner.claim_ownership(group, claims)

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = ReadOnly(env.store)
            engine = Engine(
                env.connection,
                serve,
                store=store,
                host="a",
                options=ProcessorOptions(give_up_s=60.0),
                clock=env.clock,
            )
            await engine.start()
            await until(lambda: engine.owned)
            store.away = "read-only"
            error, took_s = await ends_with(env, engine)
            assert "may not write" in str(error)
            assert 60 <= took_s < 120

    run(scenario())


class RawStore(OutageStore):
    """A store of the user: while it is away, it raises the error of its driver."""

    error: Exception = ConnectionResetError("reset by peer")

    async def _reach(self) -> None:
        if self.away:
            raise self.error


class DriverError(Exception):
    """Of a database driver: neither an OSError nor a StoreError."""


@pytest.mark.parametrize("error", [RawStore.error, DriverError("server closed the connection")])
def test_a_store_of_the_user_that_raises_its_own_errors_does_not_end_the_host(
    error: Exception,
) -> None:
    errors: list[Exception] = []

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = RawStore(env.store)
            store.error = error
            engine = Engine(
                env.connection,
                serve,
                store=store,
                host="a",
                clock=env.clock,
                on_error=lambda partition, failed: errors.append(failed),
            )
            async with engine:
                await until(lambda: engine.owned)
                await store.outage("raw", 100)
                assert not engine.owned  # the lease has expired
                await until(lambda: engine.owned)

    run(scenario())
    texts = [str(failed) for failed in errors if isinstance(failed, StoreError)]
    assert any(text.endswith(f"could not be listed: {error!r}") for text in texts), texts
    assert any(text.endswith(f"not have been written: {error!r}") for text in texts), texts


def test_a_store_of_the_user_that_always_raises_ends_the_host() -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            store = RawStore(env.store)
            store.error = DriverError("a bug")
            options = ProcessorOptions(give_up_s=60.0)
            engine = Engine(
                env.connection, serve, store=store, host="a", clock=env.clock, options=options
            )
            await engine.start()
            await until(lambda: engine.owned)
            store.away = "raw"
            failure, _ = await ends_with(env, engine)
            assert "a bug" in str(failure)

    run(scenario())
