"""KeyboardInterrupt and SystemExit in a handler, while another handler of the partition is busy."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.sqlite.store import SqliteStore

HUB = "eh"
BODIES = ("ok", "ok", "busy", "raise", "ok", "ok")
BUSY_AT = 2
LIMIT_S = 60.0  # a handler is busy for ten times as long


@pytest.mark.parametrize(
    ("api", "error", "status"),
    [
        ("handler", "interrupt", -signal.SIGINT),
        ("threads", "exit", 0),
        ("fixed", "exit", 0),
        ("group", "interrupt", -signal.SIGINT),
    ],
)
async def test_a_handler_that_raises_an_exit_ends_the_process(
    api: str, error: str, status: int, tmp_path: Path
) -> None:
    """Neither a busy handler nor a stop delays it, and no checkpoint passes the busy event."""
    async with EmbeddedHub({HUB: 1}) as hub, SqliteStore(tmp_path / "leases.db") as store:
        connection = hub.connection_string(HUB)
        async with open_client(connection) as client:
            await (await client.sender("0")).send([Event(body.encode()) for body in BODIES])
            group = Group(client.namespace, client.hub, "$Default")
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.processor.support.exiting_host",
            api, error, connection, str(store.path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(LIMIT_S):
                output, errors = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        assert program.returncode == status, errors.decode()
        handled = {int(text) for text in output.decode().split() if text.isdecimal()}
        assert len(BODIES) - 1 in handled
        assert BUSY_AT not in handled
        for checkpoint in await store.list_checkpoints(group):
            assert (checkpoint.sequence or 0) < BUSY_AT
