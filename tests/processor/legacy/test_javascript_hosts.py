"""Hosts of Pumphouse beside the unmodified JavaScript Event Processor Host, npm 2.1.1."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from pumphouse import EventProcessorHost, PartitionContext, PartitionManagerOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
from tests.azurite.fixtures import Storage

JS = Path(__file__).parent / "js"
HUB, PARTITIONS = "eh", 8
LEASES = PartitionManagerOptions(lease_duration_s=15, renew_interval_s=2)
# The longest wait for one step. A killed host keeps its leases for 15 s.
LIMIT_S = 90.0
POLL_S = 0.2


@pytest.fixture(autouse=True)
def package() -> None:
    if shutil.which("node") is None or not (JS / "node_modules").is_dir():
        raise RuntimeError("needs node and the legacy host: run scripts/npm-ci, or make test")


class MixedGroup:
    """Hosts of both kinds on one hub and one container, and all events that they have handled."""

    def __init__(self, storage: Storage, hub: EmbeddedHub) -> None:
        self.storage, self.hub = storage, hub
        self.handled: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by partition
        self.epochs: defaultdict[str, list[int]] = defaultdict(list)
        self.sent: dict[str, int] = {str(number): 0 for number in range(PARTITIONS)}
        self.ours: dict[str, EventProcessorHost] = {}
        self.theirs: dict[str, asyncio.subprocess.Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._stop_sending = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.client = await self._stack.enter_async_context(
            open_client(self.hub.connection_string(HUB))
        )
        self.group = Group(self.client.namespace, HUB)
        self.store = await self._stack.enter_async_context(
            BlobLeaseStore.from_connection_string(self.storage.direct, self.storage.container)
        )
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        for host in self.ours.values():
            await host.stop()
        for process in self.theirs.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._readers)
        await self._stack.aclose()

    # -- hosts ------------------------------------------------------------------------------------

    async def add_theirs(self, name: str) -> None:
        connection = self.hub.connection_string(HUB, tls=True)
        key = connection.split("SharedAccessKey=")[1].split(";")[0]
        rule = connection.split("SharedAccessKeyName=")[1].split(";")[0]
        settings = {
            "name": name,
            "storage": self.storage.direct,
            "container": self.storage.container,
            "connection": f"Endpoint=sb://localhost/;SharedAccessKeyName={rule};"
            f"SharedAccessKey={key};EntityPath={HUB}",
            "leaseS": int(LEASES.lease_duration_s),
            "renewS": int(LEASES.renew_interval_s),
        }
        process = await asyncio.create_subprocess_exec(
            "node", "--require", "./preload.cjs", "host.cjs", json.dumps(settings),
            cwd=JS,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "HUB_PORT": str(self.hub.tls_port),
                "NODE_EXTRA_CA_CERTS": str(self.hub.ca_file),
            },
        )  # fmt: skip
        self.theirs[name] = process
        self._readers.append(asyncio.create_task(self._read(process)))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if "sequence" in (event := parsed(line)):
                self.handled[event["partition"]][event["sequence"]] += 1

    async def stop_theirs(self, name: str) -> None:
        process = self.theirs.pop(name)
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), LIMIT_S)

    async def kill_theirs(self, name: str) -> None:
        process = self.theirs.pop(name)
        process.kill()
        await process.wait()

    async def add_ours(self, name: str) -> None:
        async def on_message(context: PartitionContext, event: Event) -> None:
            assert event.sequence is not None
            self.handled[context.partition_id][event.sequence] += 1
            await context.checkpoint(event)

        host = EventProcessorHost.from_connection_string(
            name,
            self.storage.direct,
            self.storage.container,
            self.hub.connection_string(HUB),
            partition_manager_options=LEASES,
            strategy="steady",
        )
        await host.start(on_message)
        self.ours[name] = host

    async def stop_ours(self, name: str) -> None:
        await self.ours.pop(name).stop()

    # -- events and owners ------------------------------------------------------------------------

    async def _send(self) -> None:
        senders = {partition: await self.client.sender(partition) for partition in self.sent}
        while not self._stop_sending.is_set():
            for partition, sender in senders.items():
                await sender.send([Event(b"%d" % self.sent[partition])])
                self.sent[partition] += 1
            await asyncio.sleep(0.1)

    async def stop_sending(self) -> None:
        """End after an acknowledgement: an event that is sent but not counted would be missed."""
        self._stop_sending.set()
        await asyncio.wait_for(self._sending, LIMIT_S)

    async def owners(self) -> Counter[str]:
        """How many partitions each live host owns."""
        listing = await self.store.list_ownership(self.group)
        for row in listing.ownerships:
            epochs = self.epochs[row.partition]
            if not epochs or epochs[-1] != row.epoch:
                epochs.append(row.epoch)
        return Counter(row.owner for row in listing.ownerships if row.owner and row.age_s == 0)

    async def until(self, condition: Callable[[Counter[str]], bool]) -> Counter[str]:
        """Until the owners satisfy this, in three looks in a row."""
        good, owners = 0, Counter[str]()
        try:
            async with asyncio.timeout(LIMIT_S):
                while good < 3:
                    owners = await self.owners()
                    good = good + 1 if condition(owners) else 0
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"the owners stay {dict(owners)}") from None
        return owners

    async def until_even(self) -> None:
        """Until the live hosts own everything, each at least its share, rounded down.

        A legacy host with that many takes no more. If the shares are whole, this is even.
        """
        names = {*self.ours, *self.theirs}

        def is_even(owners: Counter[str]) -> bool:
            counts = [owners[name] for name in names]
            return sum(counts) == PARTITIONS and min(counts) >= PARTITIONS // len(names)

        await self.until(is_even)

    def missing(self) -> dict[str, int]:
        return {
            partition: lost
            for partition, count in self.sent.items()
            if (lost := count - len(self.handled[partition]))
        }

    async def until_handled(self) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while self.missing():  # noqa: ASYNC110 (other processes report their events)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"not handled: {self.missing()}") from None

    def duplicates(self) -> int:
        return sum(count - 1 for events in self.handled.values() for count in events.values())


def parsed(line: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(line)
    return value


@asynccontextmanager
async def mixed_group(storage: Storage, folder: Path) -> AsyncIterator[MixedGroup]:
    async with (
        EmbeddedHub({HUB: PARTITIONS}, tls_port=0, tls_dir=folder) as hub,
        MixedGroup(storage, hub) as group,
    ):
        yield group


@pytest.mark.timeout(600)  # the leases of a killed host last 15 s, and there are eight steps
async def test_hosts_replace_legacy_hosts_one_by_one(storage: Storage, tmp_path: Path) -> None:
    """Two of each kind, starting, stopping and killed; in the end only ours are left."""
    async with mixed_group(storage, tmp_path) as group:
        await group.add_theirs("js-1")
        await group.until_even()
        await group.add_theirs("js-2")
        await group.add_ours("anna")
        await group.until_even()
        await group.kill_theirs("js-1")
        await group.add_ours("bert")
        await group.until_even()
        await group.add_theirs("js-3")
        await group.until_even()
        await group.stop_ours("anna")
        await group.until_even()
        await group.stop_theirs("js-2")
        await group.add_ours("carl")
        await group.until_even()
        await group.stop_theirs("js-3")
        await group.until_even()
        await group.stop_sending()
        await group.until_handled()
        assert await group.store.find_format(group.group) == "javascript"
        for epochs in group.epochs.values():
            assert epochs == sorted(epochs)
        # Only at steals, and of a killed host: up to a checkpoint interval of each moved partition.
        assert group.duplicates() < sum(group.sent.values()) / 2
