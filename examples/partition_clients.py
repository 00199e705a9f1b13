"""Pull: two hosts share a hub. Each gets partitions, handles their batches and checkpoints."""
# mypy: disable-error-code=no-untyped-def

import asyncio

from pumphouse import EmbeddedHub, Event, MemoryStore, Processor, open_client

handled, done = 0, asyncio.Event()


async def run(host, connection, store):
    async def serve(partition):
        global handled
        async for batch in partition.batches():
            await partition.checkpoint()
            handled += len(batch)
            print(f"{host} has handled {len(batch)} events of partition {partition.id}")
            if handled == 40:
                done.set()

    await Processor(connection, store=store, host=host).run(serve)


async def main():
    async with EmbeddedHub({"orders": 4}) as hub, open_client(hub.connection_string("orders")) as c:
        await (await c.sender()).send(Event(b"order", partition_key=str(n)) for n in range(40))
        shared = (hub.connection_string("orders"), MemoryStore())  # for processes: SqliteStore
        hosts = [asyncio.create_task(run(name, *shared)) for name in ("anna", "bert")]
        await done.wait()
        for host in hosts:
            host.cancel()
        await asyncio.wait(hosts)


asyncio.run(main())
