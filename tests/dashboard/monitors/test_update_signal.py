"""The signal that wakes waiting streams."""

from __future__ import annotations

import asyncio

from pumphouse.dashboard.monitors.update_signal import UpdateSignal


async def test_an_update_wakes_all_waiters_and_closing_ends_them() -> None:
    updates = UpdateSignal()
    assert await updates.wait_after(0, 0.01) == 0
    waiting = [asyncio.create_task(updates.wait_after(0, 60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    updates.notify()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    ending = asyncio.create_task(updates.wait_after(1, 60.0))
    await asyncio.sleep(0)
    updates.close()
    assert await ending == 1
    assert await updates.wait_after(1, 60.0) == 1
