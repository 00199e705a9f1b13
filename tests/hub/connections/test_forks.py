"""A child forked from the process of a hub: it neither uses the hub nor keeps it open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRELUDE = """
import asyncio, os, socket, sys, tempfile
from pumphouse import EmbeddedHub, Event, open_client
from pumphouse.errors import DataDirectoryError, PumphouseError

async def send(connection):
    async with open_client(connection) as client:
        await (await client.sender("0")).send([Event(b"x")])

def succeeded(pid):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 7, code

def check_refused(hub, parent):
    for call in (
        lambda: hub.hubs,
        lambda: hub.create_hub("other"),
        lambda: hub.faults,
        hub.tick,
        hub.drop_connections,
        hub.__enter__,
        lambda: asyncio.new_event_loop().run_until_complete(hub.start()),
    ):
        try:
            call()
        except PumphouseError as error:
            assert f"this hub runs in process {parent}" in str(error), error
        else:
            os._exit(1)
    assert str(hub.port) in hub.connection_string("h")
"""

LIVES_ON = """
directory = tempfile.mkdtemp()
until_parent, to_child = os.pipe()
until_child, to_parent = os.pipe()
with EmbeddedHub({"h": 1}, data=directory, tls_port=0, ws_port=0, http_port=0) as hub:
    ports = [hub.port, hub.tls_port, hub.ws_port, hub.http_port]
    client = socket.create_connection(("127.0.0.1", hub.port), 60)
    client.sendall(b"AMQP\\3\\1\\0\\0")
    assert client.recv(8) == b"AMQP\\3\\1\\0\\0"  # the hub has accepted it
    if (child := os.fork()) == 0:
        os.close(to_child)
        os.write(to_parent, b"x")
        os.read(until_parent, 1)
        os._exit(7)
    os.read(until_child, 1)
    try:
        with EmbeddedHub(data=directory):
            raise AssertionError("the child has released the lock of its parent")
    except DataDirectoryError as error:
        assert str(os.getpid()) in str(error)
    asyncio.run(send(hub.connection_string("h")))
while client.recv(4096):
    pass
for port in ports:
    try:
        socket.create_connection(("127.0.0.1", port), 60)
    except ConnectionRefusedError:
        continue
    raise AssertionError(f"the child has kept port {port}")
with EmbeddedHub(data=directory, port=ports[0]) as hub:
    assert hub.hubs == {"h": 1}
os.write(to_child, b"x")
succeeded(child)
"""

USES_IT = """
with EmbeddedHub({"h": 1}, data=tempfile.mkdtemp()) as hub:
    if (child := os.fork()) == 0:
        check_refused(hub, os.getppid())
        with EmbeddedHub({"own": 1}) as own:
            asyncio.run(send(own.connection_string("own")))
        asyncio.run(send(hub.connection_string("h")))
        sys.exit(7)  # leaves the block
    succeeded(child)
    hub.create_hub("other")
    asyncio.run(send(hub.connection_string("other")))
"""

USES_IT_IN_A_COROUTINE = """
async def main():
    async with EmbeddedHub({"h": 1}, data=tempfile.mkdtemp()) as hub:
        if (child := os.fork()) == 0:
            try:
                hub.create_hub("other")
            except PumphouseError as error:
                assert f"this hub runs in process {os.getppid()}" in str(error), error
                await hub.__aexit__(None, None, None)
                os._exit(7)
            finally:
                os._exit(1)
        succeeded(child)
        hub.create_hub("other")
        await send(hub.connection_string("other"))

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [LIVES_ON, USES_IT, USES_IT_IN_A_COROUTINE])
def test_a_forked_child(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
