"""The health checks of a host in the process of an application.

    async with health_checks(processor):    # checked by /livez and /readyz of serve_health()
        await processor.run(serve)

Processor, EventProcessorHost, FixedPartitionProcessor -> HostHealth -> CHECKS -> /livez, /readyz
                                                          ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from pumphouse.errors import OptionError
from pumphouse.processor.engine import Engine
from pumphouse.processor.health.host_health import HostHealth
from pumphouse.telemetry.health import CHECKS, LIVE, READY, checking, checking_loop

NOT_RUNNING = "the host is not running"


class Host(Protocol):
    """A processor of any API."""

    @property
    def engine(self) -> Engine | None:
        """None while it does not run."""


@asynccontextmanager
async def health_checks(
    host: Host, name: str = "host", clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[None]:
    """Add the checks of a host to /livez and /readyz, also for the time before and after it runs.

    Several hosts in a process need several names. A `ProcessorGroup` needs no checks: it adds its
    own. /livez also fails while the event loop is blocked.
    """
    if CHECKS.has(READY, name):
        raise OptionError(f"there is a check {name!r} already: give each host a name of its own")

    def not_ready() -> str | None:
        engine = host.engine
        return NOT_RUNNING if engine is None else HostHealth(engine).not_ready()

    def not_live() -> str | None:
        engine = host.engine
        return None if engine is None else HostHealth(engine).not_live()

    with (
        checking(READY, name, not_ready),
        checking(LIVE, name, not_live),
        checking_loop(f"event loop of {name}", clock),
    ):
        yield
