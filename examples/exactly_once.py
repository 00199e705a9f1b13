"""Exactly once: rows and checkpoint commit together (DATABASE_URL=postgres://USER@HOST/DATABASE)."""

import asyncio
import os

from pumphouse import EmbeddedHub, Event, EventProcessorHost, PartitionContext, open_client
from pumphouse.leases.stores.postgres.store import PostgresStore

TABLE = "CREATE TABLE IF NOT EXISTS payment (account text PRIMARY KEY, cents bigint NOT NULL)"
ADD = """INSERT INTO payment VALUES (%s, %s)
    ON CONFLICT (account) DO UPDATE SET cents = payment.cents + excluded.cents"""


async def main() -> None:
    done = asyncio.Event()

    async def on_message(context: PartitionContext, event: Event) -> None:
        account, cents = event.body.decode().split()
        async with context.transaction() as connection:  # commits row and checkpoint, or neither
            await connection.execute(TABLE)
            await connection.execute(ADD, (account, int(cents)))
            rows = await connection.execute("SELECT account, cents FROM payment")
            print(await rows.fetchall())
        done.set()

    async with EmbeddedHub({"payments": 2}) as hub:
        address = hub.connection_string("payments")
        async with open_client(address) as client:
            await (await client.sender()).send([Event(b"anna 1250")])
        store = PostgresStore(os.environ["DATABASE_URL"])
        host = EventProcessorHost("vm-1", address, store=store)
        await host.start(on_message)
        await done.wait()
        await host.stop()


if __name__ == "__main__":
    asyncio.run(main())
