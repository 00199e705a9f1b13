"""A hub in a process of its own: `python -m benchmarks._hub HUBS PARTITIONS [DIR SYNC [BYTES]]`.

With a directory it keeps its events there, unless SYNC is "memory". BYTES bound a partition.

It tells its connection string, and ends when its input closes.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks._processes import tell, wait_for_the_end
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention

# Whatever a benchmark sends must still be there when it is read.
BYTES_MAX = 1 << 30


async def serve(
    hubs: int, partitions: int, data: str = "", sync: str = "memory", bytes_max: int = BYTES_MAX
) -> None:
    started = time.perf_counter()
    names = {f"hub{number}": partitions for number in range(hubs)}
    retention = Retention(bytes_max=bytes_max)
    kept, sync = (None, "always") if sync == "memory" else (data, sync)
    async with EmbeddedHub(names, retention=retention, data=kept, sync=sync) as hub:
        start_s = time.perf_counter() - started
        tell(connection=hub.connection_string("hub0"), start_s=start_s)
        await asyncio.to_thread(wait_for_the_end)


if __name__ == "__main__":
    defaults = ["1", "1", "", "memory", str(BYTES_MAX)]
    hubs, partitions, data, sync, bytes_max = [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]]
    asyncio.run(serve(int(hubs), int(partitions), data, sync, int(bytes_max)))
