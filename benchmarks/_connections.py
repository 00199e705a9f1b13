"""Attaches many readers, and keeps them attached.

    python -m benchmarks._connections CONNECTION READERS CLIENTS

Each client of the native driver has one connection, which its readers share.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from benchmarks._processes import print_result, wait_until_stdin_closes
from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient

AT_ONCE = 50  # readers that attach at the same time


async def main(connection: str, readers: int, count: int) -> None:
    async with AsyncExitStack() as stack:
        clients = [NativeClient(connection) for _ in range(count)]
        for client in clients:
            await stack.enter_async_context(client)
        partitions = (await clients[0].properties()).partitions
        for start in range(0, readers, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, readers))
            await asyncio.gather(
                *(
                    clients[number % count].reader(
                        ReaderOptions(partitions[number % len(partitions)])
                    )
                    for number in numbers
                )
            )
        print_result(readers=readers)
        await asyncio.to_thread(wait_until_stdin_closes)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:4])))
