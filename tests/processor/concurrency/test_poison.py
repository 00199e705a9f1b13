"""Poison with several handlers of a partition."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from pumphouse.errors import PoisonEvent
from pumphouse.processor.dead_letters import DeadLetterFile
from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.processor.options import (
    PoisonPolicy,
)
from tests.processor.concurrency.env import (
    OPTIONS,
    Env,
    Handler,
    N,
)
from tests.processor.support.hub_and_store import until
from tests.processor.support.virtual_time import run


def test_an_event_that_fails_stops_the_partition_and_a_resume_continues() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, batch_events_max=1)
        async with Env() as env:
            handler.bad.add("x")
            slow = handler.hold("a")
            await env.send_keys("aaxbcdefgh" + "bcdefgh" * 5)
            async with env.host(handler, options) as host:
                await until(lambda: env.errors)
                slow.set()
                await env.until_checkpoint(1)
                count = len(handler.handled)
                await asyncio.sleep(60)
                assert len(handler.handled) == count < 12
                assert await env.state() == "stopped"
                handler.bad.clear()
                host.processor.resume()
                await env.until_checkpoint(44)
        poison = [error for error in env.errors if isinstance(error, PoisonEvent)]
        assert [error.sequence for error in poison] == [2]

    run(scenario())


def test_with_stop_key_only_the_key_of_a_failing_event_waits() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(OPTIONS, poison=PoisonPolicy(retries=0, then="stop-key"))
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("axbxcxdabc-x")
            async with env.host(handler, options) as host:
                await until(lambda: len(handler.handled) == 8)
                await asyncio.sleep(60)
                assert len(handler.handled) == 8
                await env.until_checkpoint(0)
                assert await env.state() == "stopped"
                handler.bad.clear()
                host.processor.resume("0")
                await env.until_checkpoint(11)
                await asyncio.sleep(60)
                assert await env.state() == ""
        assert sorted(handler.sequences()) == list(range(12))
        handler.check_order()

    run(scenario())


def test_a_key_that_waits_fills_the_buffer_and_then_the_partition_waits() -> None:
    async def scenario() -> None:
        handler = Handler()
        options = replace(
            OPTIONS,
            concurrency=Concurrency(N, ahead_events_max=8),
            poison=PoisonPolicy(retries=0, then="stop-key"),
            batch_events_max=1,
        )
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("x" + "abcd" * 10)
            async with env.host(handler, options) as host:
                await until(lambda: len(handler.handled) == 7)
                await asyncio.sleep(60)
                assert len(handler.handled) == 7
                assert host.client.order is not None
                assert host.client.order.ahead == 8
                handler.bad.clear()
                host.processor.resume()
                await env.until_checkpoint(40)

    run(scenario())


def test_a_failing_event_of_a_key_is_skipped_while_others_continue(tmp_path: Path) -> None:
    async def scenario() -> None:
        handler = Handler()
        policy = PoisonPolicy(retries=2, first_s=10.0, then="dead-letter")
        letters = DeadLetterFile(tmp_path / "letters")
        async with Env() as env:
            handler.bad.add("x")
            await env.send_keys("xabcdabcd")
            options = replace(OPTIONS, poison=policy)
            async with env.host(handler, options, dead_letters=letters):
                await until(lambda: len(handler.handled) == 8)
                assert not [error for error in env.errors if isinstance(error, PoisonEvent)]
                await env.until_checkpoint(8)
        assert len(letters.path.read_text().splitlines()) == 1

    run(scenario())
