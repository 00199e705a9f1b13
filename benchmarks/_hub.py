"""A hub in its own process.

    python -m benchmarks._hub HUBS PARTITIONS [DIR SYNC [BYTES [metrics]]]

With a directory the hub is durable, unless SYNC is "memory". BYTES is the size limit of a
partition. With `metrics` it records them. It prints its connection string and ends when its input
closes.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks._processes import print_result, wait_until_stdin_closes
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention
from pumphouse.telemetry import serve_metrics

# Large enough that no event expires before it is read.
BYTES_MAX = 1 << 30


async def serve(
    hubs: int, partitions: int, data: str = "", sync: str = "memory", bytes_max: int = BYTES_MAX
) -> None:
    started = time.perf_counter()
    names = {f"hub{number}": partitions for number in range(hubs)}
    retention = Retention(bytes_max=bytes_max)
    directory, sync = (None, "always") if sync == "memory" else (data, sync)
    async with EmbeddedHub(names, retention=retention, data=directory, sync=sync) as hub:
        start_s = time.perf_counter() - started
        print_result(connection=hub.connection_string("hub0"), start_s=start_s)
        await asyncio.to_thread(wait_until_stdin_closes)


if __name__ == "__main__":
    defaults = ["1", "1", "", "memory", str(BYTES_MAX), ""]
    given = [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]]
    hubs, partitions, data, sync, bytes_max, metrics = given
    if metrics:
        serve_metrics(0)
    asyncio.run(serve(int(hubs), int(partitions), data, sync, int(bytes_max)))
