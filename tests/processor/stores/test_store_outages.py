"""A store or hub that fails inside a handler: it is never the handler's failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pumphouse.errors import (
    ConnectionFailed,
    OwnershipLost,
    PoisonEvent,
    StoreError,
    StoreUnavailable,
)
from pumphouse.events import Event
from pumphouse.processor.handlers import Blame, blame
from pumphouse.processor.options import PoisonPolicy
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.outage_store import FAST, FORMS, OutageStore
from tests.processor.support.user_code import APIS, LEASE_S, RENEW_S, Errors, HostOptions, host_of
from tests.processor.support.virtual_time import run

Checkpoint = Callable[..., Awaitable[None]]
PUSHED = ("class", "functions", "fixed")  # the APIs that call a handler
SENT = 60
LAST_S = RENEW_S / 4 + 0.5  # attempts of a renewal are a quarter of RENEW_S apart; and a response
STRICT = PoisonPolicy(retries=1, first_s=0.1, most_s=0.2, then="skip")  # poison within a second


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_event", [False, True], ids=["batch", "event"])
@pytest.mark.parametrize(("api", "concurrency"), [*((api, 1) for api in APIS),
                                                  *((api, 4) for api in PUSHED)])  # fmt: skip
def test_handlers_do_not_notice_an_outage_shorter_than_a_lease(
    api: str, concurrency: int, with_event: bool, form: str
) -> None:
    """Every event is handled once: no exception, no retry, no poison, no lost partition."""

    async def scenario() -> None:
        handled: Counter[bytes] = Counter()
        raised: list[BaseException] = []
        errors: Errors = []
        away: asyncio.Task[None] | None = None

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            nonlocal away
            handled.update(event.body for event in events)
            if sum(handled.values()) > SENT // 3 and away is None:
                away = asyncio.create_task(store.outage(form, 0.4 * LEASE_S))
                await asyncio.sleep(0)
            try:
                await (checkpoint(events[-1]) if with_event else checkpoint())
            except Exception as error:
                raised.append(error)
                raise

        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            await env.send(*map(str, range(SENT)))
            options = HostOptions(poison=STRICT, concurrency=concurrency)
            async with host_of(api, env, store, handle, errors, options=options):
                await until(lambda: len(handled) == SENT)
                await env.until_checkpoint(SENT - 1)
            assert store.refused_checkpoints, "the outage met no checkpoint"
        assert not raised
        assert set(handled.values()) == {1}
        assert not [error for _, error in errors if not isinstance(error, StoreError)]

    run(scenario())


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("api", PUSHED)
@pytest.mark.parametrize("form", FORMS)
def test_an_outage_longer_than_the_lease_loses_the_partition_but_no_event(
    api: str, form: str, concurrency: int
) -> None:
    async def scenario() -> None:
        handled: Counter[bytes] = Counter()
        errors: Errors = []
        away: asyncio.Task[None] | None = None

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            nonlocal away
            handled.update(event.body for event in events)
            if sum(handled.values()) > SENT // 3 and away is None:
                away = asyncio.create_task(store.outage(form, 3 * LEASE_S))
                await asyncio.sleep(0)
            await checkpoint()

        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            await env.send(*map(str, range(SENT)))
            options = HostOptions(poison=STRICT, concurrency=concurrency)
            async with host_of(api, env, store, handle, errors, options=options):
                await until(lambda: len(handled) == SENT)
                await env.until_checkpoint(SENT - 1)
        assert not [error for _, error in errors if isinstance(error, PoisonEvent)]

    run(scenario())


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("api", PUSHED)
def test_a_hub_that_fails_in_the_handler_is_not_poison(api: str, concurrency: int) -> None:
    """The batch is retried until the hub is back, without counting attempts."""

    async def scenario() -> None:
        handled: Counter[bytes] = Counter()
        errors: Errors = []
        failures = 0

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            nonlocal failures
            if failures < 20:
                failures += 1
                raise ConnectionFailed("the next hub is away")
            handled.update(event.body for event in events)

        async with HubAndStore(1) as env:
            await env.send("a", "b", "c")
            options = HostOptions(poison=STRICT, concurrency=concurrency)
            async with host_of(api, env, env.store, handle, errors, options=options):
                await until(lambda: len(handled) == 3)
        assert set(handled.values()) == {1}
        assert {type(error) for _, error in errors} == {ConnectionFailed}
        assert failures == 20

    run(scenario())


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("api", PUSHED)
def test_a_checkpoint_waits_no_longer_than_the_stop(api: str, concurrency: int) -> None:
    """stop() is bounded, though a handler waits for the store."""

    async def scenario() -> None:
        started = asyncio.Event()
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            store.away = FAST
            started.set()
            await checkpoint()

        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            await env.send("a")
            loop = asyncio.get_running_loop()
            options = HostOptions(concurrency=concurrency)
            async with host_of(api, env, store, handle, errors, options=options):
                await started.wait()
                before_s = loop.time()
            assert loop.time() - before_s < 30 + 6 * LEASE_S / 3

    run(scenario())


# -- who is to blame ------------------------------------------------------------------------------


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


LOST = OwnershipLost("0", 1)
AWAY = StoreUnavailable("away")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), Blame.HANDLER),
        (AWAY, Blame.OUTAGE),
        (ConnectionFailed("away"), Blame.OUTAGE),
        (LOST, Blame.FENCED),
        (raised_from(ValueError("x"), AWAY), Blame.OUTAGE),
        (raised_from(ValueError("x"), KeyError("y")), Blame.HANDLER),
        (ExceptionGroup("tasks", [LOST]), Blame.FENCED),
        (ExceptionGroup("tasks", [AWAY, LOST]), Blame.OUTAGE),
        (ExceptionGroup("tasks", [AWAY, ValueError("x")]), Blame.HANDLER),
    ],
    ids=str,
)
def test_blame(error: Exception, expected: Blame) -> None:
    assert blame(error) is expected


def test_an_exception_that_is_its_own_cause_ends_the_search() -> None:
    error: Any = ValueError("x")
    error.__cause__ = error
    assert blame(error) is Blame.HANDLER


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("before_s", [0.5, 3.0, 6.0, 9.0])
@pytest.mark.parametrize("api", APIS)
def test_an_outage_that_ends_a_few_seconds_before_the_lease_is_survived(
    api: str, before_s: float, form: str
) -> None:
    """The lease counts from the last renewal, which may be `RENEW_S` before the outage."""

    async def scenario() -> None:
        errors: Errors = []
        raised: list[BaseException] = []
        handled: Counter[bytes] = Counter()

        async def handle(checkpoint: Checkpoint, events: list[Event]) -> None:
            handled.update(event.body for event in events)
            try:
                await checkpoint()
            except Exception as error:
                raised.append(error)
                raise

        async def send_all() -> None:
            for number in range(SENT):
                await env.send(str(number))
                await asyncio.sleep(1)

        async with HubAndStore(1) as env:
            store = OutageStore(env.store)
            async with host_of(api, env, store, handle, errors) as host:
                await until(lambda: host.owned == ("0",))
                sending = asyncio.create_task(send_all())
                (row,) = (await env.store.list_ownership(env.group)).ownerships
                await asyncio.sleep(before_s - row.age_s % RENEW_S)
                (row,) = (await env.store.list_ownership(env.group)).ownerships
                await store.outage(form, LEASE_S - row.age_s - LAST_S)
                await sending
                await until(lambda: len(handled) == SENT)
                (after,) = (await env.store.list_ownership(env.group)).ownerships
                assert after.epoch == row.epoch, "the lease was not lost"
                assert raised == []
                assert set(handled.values()) == {1}

    run(scenario())
