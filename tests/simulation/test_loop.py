"""The loop in virtual time: sleeps take no real time, processes freeze and die."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from pumphouse.simulation.loop import HostClock, HostProcess, SimLoop


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


def test_a_sleep_takes_no_real_time() -> None:
    async def scene() -> float:
        before_s = asyncio.get_running_loop().time()
        await asyncio.sleep(365 * 86400)
        return asyncio.get_running_loop().time() - before_s

    started_s = time.monotonic()
    assert run(scene()) == pytest.approx(365 * 86400)
    assert time.monotonic() - started_s < 3600


def test_a_frozen_process_resumes_and_a_dead_one_does_not() -> None:
    async def scene() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        records: list[tuple[str, float]] = []

        async def tick(process: HostProcess) -> None:
            while True:
                await asyncio.sleep(1)
                records.append((process.name, loop.time()))

        ticking: list[asyncio.Task[None]] = []
        frozen, dead, well = HostProcess("frozen"), HostProcess("dead"), HostProcess("well")
        for process in (frozen, dead, well):
            ticking.append(loop.create_task(tick(process), context=loop.context_of(process)))
        await asyncio.sleep(2.5)
        frozen.frozen = True
        loop.kill(dead)
        await asyncio.sleep(10)
        records.append(("thaw", loop.time()))
        loop.thaw(frozen)
        await asyncio.sleep(1.5)
        loop.kill(frozen)
        loop.kill(well)
        return records

    records = run(scene())
    thaw = records.index(next(record for record in records if record[0] == "thaw"))
    assert [name for name, _ in records[:thaw]].count("frozen") == 2
    assert [name for name, _ in records].count("dead") == 2
    assert [name for name, _ in records[thaw:]].count("frozen") == 2
    assert [name for name, _ in records[:thaw]].count("well") == 12


def test_a_host_clock_may_be_ahead_and_fast() -> None:
    async def scene() -> None:
        right, wrong = HostClock(), HostClock(ahead_s=3600, rate=1.01)
        before_s, ahead_s = right.monotonic(), wrong.monotonic()
        await wrong.sleep(101)
        assert right.monotonic() - before_s == pytest.approx(100)
        assert wrong.monotonic() - ahead_s == pytest.approx(101)
        assert wrong.now() - right.now() > 3600

    run(scene())


def test_the_order_of_tasks_in_a_set_does_not_depend_on_memory_addresses() -> None:
    """A task group and asyncio.wait keep their tasks in sets, and cancel them in their order."""
    kept: list[bytearray] = []

    async def cancelled_in_order() -> list[int]:
        order: list[int] = []

        async def member(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append(number)

        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    kept.append(bytearray(37 * len(kept) % 900))
                    group.create_task(member(number))
                await asyncio.sleep(1)
                raise ValueError
        return order

    def run_once() -> list[int]:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(cancelled_in_order())

    assert run_once() == run_once() == run_once()
