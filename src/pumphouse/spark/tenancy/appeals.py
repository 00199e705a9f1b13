"""A task that was evicted asks the driver what to do: go on with a higher epoch, leave, or fail.

Another reader with a higher epoch has taken a partition from under a task. Perhaps another host
owns it now: then the task ends its part there, and the new owner reads those events. Perhaps it is
a stranger who has no right to it: then our epoch is raised above the stranger's. Only the driver
can tell, by asking the store; and it must know before the batch is committed. So, unlike feedback,
this is a question that is waited for.

    task -> appeal -> socket -> Appeals -> Tenant.judge -> Ruling -> task
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from pumphouse.errors import PumphouseError
from pumphouse.spark.lag.task_reports import LINE_BYTES_MAX, DriverAddress

GO, LEAVE, FAIL = "go", "leave", "fail"
LINE_S = 5.0
ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Appeal:
    """A task lost its reader of this epoch; what the hub said, and the other's epoch if it did."""

    partition: str
    epoch: int
    said: str
    above: int | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the task does: `go` on with the epoch, `leave` the rest to its owner, or `fail`."""

    verb: str
    why: str = ""
    epoch: int = 0


Judge = Callable[[Appeal], Awaitable[Ruling]]


class Appeals:
    """Hears appeals, in the loop of the tenant."""

    def __init__(self, host: str, judge: Judge) -> None:
        self._host, self._judge = host, judge
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self.address = DriverAddress(host, 0, self._token)

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._hear, self._host, 0, limit=LINE_BYTES_MAX, backlog=64
        )
        self.address = DriverAddress(
            self._host, self._server.sockets[0].getsockname()[1], self._token
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever finds the port may send anything: it is not answered.
        with suppress(Exception):
            async with asyncio.timeout(LINE_S):
                told = json.loads(await reader.readline())
            token = str(told.pop("token")).encode()
            if secrets.compare_digest(token, self._token.encode()):
                async with asyncio.timeout(ANSWER_S):
                    ruling = await self._ruling(Appeal(**told))
                writer.write(json.dumps(asdict(ruling)).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _ruling(self, appeal: Appeal) -> Ruling:
        try:
            return await self._judge(appeal)
        except PumphouseError as failed:
            return Ruling(FAIL, f"whose it is could not be found out: {failed}")


def appeal(address: DriverAddress, question: Appeal) -> Ruling:
    """Ask the driver, from a task; without an answer it is told to fail."""
    line = json.dumps({"token": address.token, **asdict(question)}).encode() + b"\n"
    try:
        with socket.create_connection((address.host, address.port), LINE_S) as there:
            there.settimeout(ANSWER_S)
            there.sendall(line)
            answer = there.makefile("rb").readline(LINE_BYTES_MAX)
        return Ruling(**json.loads(answer))
    except (OSError, ValueError, TypeError):
        return Ruling(FAIL, "the driver gave no answer")
