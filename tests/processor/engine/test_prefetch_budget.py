"""The bytes that all readers of a process may buffer together."""

from __future__ import annotations

from dataclasses import replace

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.prefetch_budget import PROCESS, PrefetchBudget
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run


def test_each_reader_gets_an_equal_share() -> None:
    budget = PrefetchBudget()
    assert budget.share(100) == 100
    for _ in range(4):
        budget.opened()
    assert budget.share(100) == 25
    budget.closed()
    assert budget.share(100) == 33


async def read_all(partition: PartitionClient) -> None:
    async for _ in partition.batches():
        pass


def test_the_readers_of_a_host_share_the_bytes_of_the_process() -> None:
    async def scenario() -> None:
        opened: dict[str, ReaderOptions] = {}

        def connect() -> HubClient:
            client = open_client(fixture.connection)
            open_reader = client.reader

            async def record(options: ReaderOptions) -> Reader:
                opened[options.partition] = options
                return await open_reader(options)

            client.reader = record  # type: ignore[method-assign]
            return client

        async with HubAndStore(8) as fixture:
            before = PROCESS.readers
            options = replace(ProcessorOptions(), prefetch_bytes_total=800_000)
            async with Engine(
                connect, read_all, store=fixture.store, strategy="greedy", options=options
            ):
                await until(lambda: len(opened) == 8)
                assert {each.buffer_bytes for each in opened.values()} == {100_000}
            assert PROCESS.readers == before

    run(scenario())
