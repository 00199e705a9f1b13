"""A child forked from the process of a client: it does not write to its connection."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, os
from pumphouse import EmbeddedHub, Event, ReaderOptions, open_client
from pumphouse.errors import LocalProtocolError

async def use(client, sender, reader):
    for call in (
        lambda: sender.send([Event(b"of the child")]),
        lambda: reader.receive(10, 60.0),
        lambda: client.sender("0"),
        lambda: client.reader(ReaderOptions("0")),
        client.properties,
    ):
        try:
            await call()
        except LocalProtocolError as error:
            assert f"was opened in process {os.getppid()}" in str(error), error
        else:
            os._exit(1)
    await sender.close()
    await reader.close()
    await client.__aexit__(None, None, None)
    os._exit(7)

def fork(*opened):
    if (child := os.fork()) == 0:
        try:
            asyncio.run(use(*opened))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main(connection):
    async with open_client(connection, driver="native") as client:
        sender, reader = await client.sender("0"), await client.reader(ReaderOptions("0"))
        await sender.send([Event(b"before")])
        assert await asyncio.to_thread(fork, client, sender, reader) == 7
        await sender.send([Event(b"after")])
        bodies = []
        async with asyncio.timeout(60):
            while len(bodies) < 2:
                bodies += [event.body for event in await reader.receive(10, 60.0)]
        assert bodies == [b"before", b"after"], bodies
        assert (await client.partition_properties("0")).last_sequence == 1

with EmbeddedHub({"h": 1}) as hub:
    asyncio.run(main(hub.connection_string("h")))
"""


def test_a_forked_child_cannot_use_the_client_of_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
