"""A hub in a process of its own: `python -m benchmarks._hub HUBS PARTITIONS`.

It tells its connection string, and ends when its input closes.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks._processes import tell, wait_for_the_end
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.log import Retention

# Whatever a benchmark sends must still be there when it is read.
RETENTION = Retention(bytes_max=1 << 30)


async def serve(hubs: int, partitions: int) -> None:
    started = time.perf_counter()
    names = {f"hub{number}": partitions for number in range(hubs)}
    async with EmbeddedHub(names, retention=RETENTION) as hub:
        start_s = time.perf_counter() - started
        tell(connection=hub.connection_string("hub0"), start_s=start_s)
        await asyncio.to_thread(wait_for_the_end)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:3])))
