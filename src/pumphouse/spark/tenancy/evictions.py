"""A task whose reader was evicted asks the driver what to do: resume, leave or fail.

Another reader with a higher epoch has taken a partition from a task. If another host owns the
partition now, the task leaves the rest to it. If the other reader has no right to the partition,
the driver raises our epoch above that of the other reader, and the task resumes. Only the driver
can decide that: it reads the store. The batch must not be committed before the decision, so the
task waits for the response.

    task -> report_eviction -> socket -> serve_evictions -> TenantBatches.decide -> response
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass

from pumphouse.errors import PumphouseError
from pumphouse.spark.lag.task_reports import LINE_BYTES_MAX, DriverAddress

RESUME, LEAVE, FAIL = "resume", "leave", "fail"
LINE_S = 5.0  # to connect, or to receive the line of a report
RESPONSE_S = 60.0  # the driver may have to read the store first


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """A task lost its reader: with which epoch it read, and what the hub reported."""

    partition: str
    epoch: int
    description: str
    evicting_epoch: int | None = None  # of the other reader, if the hub named it


@dataclass(frozen=True, slots=True)
class EvictionDecision:
    """What the task does: resume with `epoch`, leave the rest to the owner, or fail."""

    action: str
    reason: str = ""
    epoch: int = 0


Decide = Callable[[EvictionReport], Awaitable[EvictionDecision]]


def compare_epochs(ours: int, report: EvictionReport) -> str | None:
    """What a task does about a partition that is ours; None: our epoch must be raised first."""
    if ours > report.epoch:
        return RESUME  # raised since the task started
    if report.evicting_epoch is not None and report.evicting_epoch <= ours:
        return FAIL  # another task of this query reads it
    return None


# -- the driver's side ----------------------------------------------------------------------------


async def serve_evictions(host: str, decide: Decide) -> tuple[asyncio.Server, DriverAddress]:
    """Listen for reports of evicted tasks; close the server to end."""
    token = secrets.token_hex(16)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Any process may connect and send anything: without the token it gets no response.
        with closing(writer), suppress(Exception):
            async with asyncio.timeout(LINE_S):
                request = json.loads(await reader.readline())
            if secrets.compare_digest(str(request.pop("token")).encode(), token.encode()):
                async with asyncio.timeout(RESPONSE_S):
                    decision = await decide_or_fail(decide, EvictionReport(**request))
                writer.write(json.dumps(asdict(decision)).encode() + b"\n")
                await writer.drain()

    server = await asyncio.start_server(respond, host, 0, limit=LINE_BYTES_MAX, backlog=64)
    return server, DriverAddress(host, server.sockets[0].getsockname()[1], token)


async def decide_or_fail(decide: Decide, report: EvictionReport) -> EvictionDecision:
    try:
        return await decide(report)
    except PumphouseError as failed:
        return EvictionDecision(FAIL, f"the owner could not be read from the store: {failed}")


# -- the task's side ------------------------------------------------------------------------------


def report_eviction(address: DriverAddress, report: EvictionReport) -> EvictionDecision:
    """Report to the driver and return its decision; FAIL if there is no valid response."""
    request = json.dumps({"token": address.token, **asdict(report)}).encode() + b"\n"
    try:
        with socket.create_connection((address.host, address.port), LINE_S) as driver:
            driver.settimeout(RESPONSE_S)
            driver.sendall(request)
            response = driver.makefile("rb").readline(LINE_BYTES_MAX)
        return EvictionDecision(**json.loads(response))
    except (OSError, ValueError, TypeError) as failed:
        driver_address = f"{address.host}:{address.port}"
        return EvictionDecision(FAIL, f"the driver did not respond at {driver_address}: {failed}")
