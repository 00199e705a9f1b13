"""Options and calls that several handlers of a partition refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.processor.options import (
    EventProcessorOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.concurrency.env import (
    OPTIONS,
    Env,
    Handler,
)
from tests.processor.support.hub_and_store import until
from tests.processor.support.virtual_time import run


def test_a_transaction_is_refused() -> None:
    async def scenario() -> None:
        refused: list[Exception] = []

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            with pytest.raises(OptionError, match=r"transaction\(\) needs concurrency=1") as error:
                partition.transaction()
            refused.append(error.value)

        async with Env() as env:
            await env.send_keys("a")
            async with env.host(handle):
                await until(lambda: refused)

    run(scenario())


def test_loops_over_batches_are_refused() -> None:
    async def scenario() -> None:
        async def serve(partition: PartitionClient) -> None:
            raise AssertionError("not called")

        async with Env() as env:
            processor = Processor(env.connection, store=env.store, options=OPTIONS)
            with pytest.raises(OptionError, match=r"run\(serve\) handles one batch at a time"):
                await processor.run(serve)
            with pytest.raises(OptionError, match=r"partitions\(\) handles one batch at a time"):
                await anext(aiter(processor.partitions()))
            with pytest.raises(OptionError, match="give one of them"):
                await processor.run(serve, handler=Handler())

    run(scenario())


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: ProcessorOptions(**options),
        lambda **options: EventProcessorOptions(**options),
    ],
)
def test_options_that_do_not_fit_are_refused(make: Callable[..., object]) -> None:
    with pytest.raises(OptionError, match="concurrency must be at least 1"):
        make(concurrency=0)
    with pytest.raises(OptionError, match="concurrency must be a whole number"):
        make(concurrency="4")
    with pytest.raises(OptionError, match=r"'stop-key'.* needs concurrency above 1"):
        make(poison=PoisonPolicy(then="stop-key"))
