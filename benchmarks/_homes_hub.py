"""The hubs of the homes in a separate process: `python -m benchmarks._homes_hub [BYTES]`.

BYTES limit the size of a partition. It prints the connection string of the namespace, and ends when
its stdin closes.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks._processes import print_result, wait_until_stdin_closes
from pumphouse.homes.schema import GROUPS, HUBS, PARTITIONS
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention

BYTES_MAX = 256 << 20


async def serve(bytes_max: int) -> None:
    hubs = dict.fromkeys(HUBS, PARTITIONS)
    async with EmbeddedHub(hubs, retention=Retention(bytes_max=bytes_max)) as hub:
        for name in HUBS:
            for group in GROUPS:
                hub.create_group(name, group)
        print_result(connection=hub.connection_string())
        await asyncio.to_thread(wait_until_stdin_closes)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else BYTES_MAX))
