"""A change of hubs, groups or rules is stored before it is visible, or has not happened."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from pumphouse.client.factory import open_client
from pumphouse.errors import AmqpError, ChangeNotStored, DataDirectoryError
from pumphouse.events import Event
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.storage.data_directory import DataDirectory
from pumphouse.hub.storage.records import NamespaceRecord
from tests.hub.listeners.http_client import HttpClient
from tests.hub.storage.failing_disk import FailingDisk

Change = Callable[[EmbeddedHub], None]

CHANGES: dict[str, Change] = {
    "create a hub": lambda hub: hub.create_hub("new", 3, ["archive"]),
    "add partitions": lambda hub: hub.grow_hub("sensors", 5),
    "delete a hub": lambda hub: hub.delete_hub("sensors"),
    "create a group": lambda hub: hub.create_group("sensors", "second"),
    "delete a group": lambda hub: hub.delete_group("sensors", "first"),
    "add a rule": lambda hub: hub.create_rule("reader", [Claim.LISTEN], key="its key"),
    "replace a rule": lambda hub: hub.create_rule("sender", [Claim.SEND], "sensors", "new key"),
}
EACH_CHANGE = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def disk(data: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(data, monkeypatch)


@pytest.fixture
async def hub(data: Path, disk: FailingDisk) -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"sensors": 2}, data=data, http_port=0) as hub:
        hub.create_group("sensors", "first")
        hub.create_rule("sender", [Claim.SEND], "sensors", "old key")
        yield hub


def visible(hub: EmbeddedHub) -> NamespaceRecord:
    """What clients can see and use, sorted as it is stored."""
    return hub.namespace.record()


def stored(data: Path) -> NamespaceRecord | None:
    """What a restart would find: the record in a copy of the directory, without the events."""
    copy = data.with_name("copy")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("hubs"))
    directory = DataDirectory(copy)
    try:
        return directory.load()
    finally:
        directory.close()
        shutil.rmtree(copy)


def modes(data: Path) -> dict[str, int]:
    """The files with keys, and their modes."""
    return {path.name: path.stat().st_mode & 0o777 for path in data.glob("namespace*")}


def refusal(change: Change, hub: EmbeddedHub) -> ChangeNotStored | None:
    try:
        change(hub)
    except ChangeNotStored as failure:
        return failure
    return None


async def send(hub: EmbeddedHub, body: bytes) -> None:
    async with open_client(hub.connection_string("sensors"), driver="native") as client:
        await (await client.sender("0")).send([Event(body)])


# -- every step of storing a change fails ---------------------------------------------------------


@EACH_CHANGE
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("for_good", [False, True])
async def test_a_change_that_cannot_be_stored_has_not_happened(
    change: Change, error: int, for_good: bool, hub: EmbeddedHub, data: Path, disk: FailingDisk
) -> None:
    before = visible(hub)
    failed_steps = []
    for step in count():
        disk.fail(step, error, for_good)
        failure = refusal(change, hub)
        disk.repair()
        if failure is None:
            break
        failed_steps.append(disk.failed)
        assert failure.disk_full == (error == errno.ENOSPC)
        assert "nothing was changed" in str(failure)
        assert visible(hub) == stored(data) == before, disk.failed
        await send(hub, b"the hub goes on")
    assert visible(hub) == stored(data) != before
    assert {"write namespace.json.new", "fsync namespace.json.new", "fsync data"} <= {*failed_steps}
    assert len(failed_steps) >= 6
    assert modes(data) == {"namespace.json": 0o600}


@EACH_CHANGE
async def test_a_change_is_stored_before_it_is_visible(
    change: Change, hub: EmbeddedHub, data: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = visible(hub)
    seen: list[bool] = []
    monkeypatch.setattr(disk, "count", lambda name, file: seen.append(visible(hub) == before))
    change(hub)
    assert len(seen) >= 6
    assert all(seen)


async def test_a_failed_change_is_logged(
    hub: EmbeddedHub, data: Path, disk: FailingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fail(0)
    with pytest.raises(ChangeNotStored):
        hub.create_hub("new")
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    text = record.getMessage()
    assert text.startswith(f"change_not_stored directory={data} error=")
    assert "No space left on device" in text
    assert "todo=" in text


async def test_the_record_is_uncertain_if_the_old_one_cannot_be_restored(
    hub: EmbeddedHub, data: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_hub("old")
    disk.fail(0)
    disk.repair()
    hub.delete_hub("old")
    before = visible(hub)
    monkeypatch.setattr(disk, "count", fail_from(disk, disk.done.index("fsync data")))
    disk.done = []
    with pytest.raises(ChangeNotStored, match="but a restart may show it") as refusal:
        hub.create_hub("new")
    assert "nothing was changed" not in str(refusal.value)
    assert visible(hub) == before
    monkeypatch.undo()
    hub.create_hub("newer")
    assert visible(hub) == stored(data)


def fail_from(disk: FailingDisk, first: int) -> Callable[[str, str], None]:
    """Let every operation after the first ones fail, renames included."""

    def count(name: str, file: str) -> None:
        disk.done.append(f"{name} {file}")
        if len(disk.done) > first:
            raise OSError(errno.EIO, "Input/output error")

    return count


async def test_a_file_system_without_hard_links_works_too(
    hub: EmbeddedHub, data: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = visible(hub)
    real = disk.count

    def count(name: str, file: str) -> None:
        if name == "link":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        real(name, file)

    monkeypatch.setattr(disk, "count", count)
    disk.fail(0)
    disk.repair()
    hub.create_hub("new")
    steps = len(disk.done)
    hub.delete_hub("new")
    for step in range(steps):
        disk.fail(step)
        with pytest.raises(ChangeNotStored):
            hub.create_hub("new")
        disk.repair()
        assert visible(hub) == stored(data) == before, disk.failed
    assert modes(data) == {"namespace.json": 0o600}


async def test_the_links_of_a_hub_stay_if_its_deletion_fails(
    hub: EmbeddedHub, disk: FailingDisk
) -> None:
    async with open_client(hub.connection_string("sensors"), driver="native") as client:
        sender = await client.sender("0")
        await sender.send([Event(b"before")])
        for change in (CHANGES["delete a hub"], CHANGES["delete a group"]):
            disk.fail(0)
            with pytest.raises(ChangeNotStored):
                change(hub)
        disk.repair()
        await sender.send([Event(b"after")])
        properties = await (await client.management()).partition("sensors", "0")
        assert properties.last_sequence == 1


async def test_files_that_cannot_be_removed_do_not_undo_the_deletion_of_a_hub(
    hub: EmbeddedHub, data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(hub, b"x")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "rename", fail)
    hub.delete_hub("sensors")
    assert hub.hubs == {}
    await hub.stop()
    monkeypatch.undo()
    assert "hub_files_left" in caplog.text
    async with EmbeddedHub(data=data) as hub:
        assert hub.hubs == {}


# -- clients --------------------------------------------------------------------------------------


async def test_management_refuses_a_change_that_cannot_be_stored(
    hub: EmbeddedHub, disk: FailingDisk, data: Path
) -> None:
    before = visible(hub)
    async with open_client(hub.connection_string("sensors"), driver="native") as client:
        management = await client.management()
        calls: list[Callable[[], Any]] = [
            lambda: management.create_hub("new", 2),
            lambda: management.grow_hub("sensors", 5),
            lambda: management.delete_hub("sensors"),
            lambda: management.create_group("sensors", "second"),
            lambda: management.delete_group("sensors", "first"),
        ]
        for call in calls:
            for error, condition in (
                (errno.ENOSPC, "amqp:resource-limit-exceeded"),
                (errno.EIO, "amqp:internal-error"),
            ):
                disk.fail(0, error)
                with pytest.raises(AmqpError, match="nothing was changed") as refusal:
                    await call()
                assert refusal.value.condition == condition
                assert str(data) not in str(refusal.value)
        disk.repair()
        assert visible(hub) == before
        assert [each.name for each in await management.hubs()] == ["sensors"]
        assert (await management.create_hub("new", 2)).name == "new"


async def test_the_http_api_refuses_a_change_that_cannot_be_stored(
    hub: EmbeddedHub, disk: FailingDisk, data: Path
) -> None:
    before = visible(hub)
    async with HttpClient(hub) as api:
        for method, target in (
            ("PUT", "/hubs/new"),
            ("DELETE", "/hubs/sensors"),
            ("PUT", "/hubs/sensors/groups/second"),
            ("DELETE", "/hubs/sensors/groups/first"),
        ):
            for error, status in ((errno.ENOSPC, 507), (errno.EIO, 500)):
                disk.fail(0, error)
                reply = await api.call(method, target, None, api.key())
                assert reply.status == status
                assert "nothing was changed" in reply.error
                assert str(data) not in reply.error
        disk.fail(0)
        body = json.dumps({"groups": ["second", "third"]}).encode()
        reply = await api.call("PUT", "/hubs/sensors", body, api.key())
        assert reply.status == 507
        disk.repair()
        assert visible(hub) == before
        assert [each["name"] for each in (await api.get("/hubs"))["hubs"]] == ["sensors"]
        assert (await api.put("/hubs/new")).status == 201


async def test_groups_of_one_request_are_created_together(
    hub: EmbeddedHub, disk: FailingDisk
) -> None:
    async with HttpClient(hub) as api:
        disk.fail(0)
        disk.repair()
        await api.put("/hubs/sensors", {"groups": ["second", "third"]})
        assert disk.done.count("replace namespace.json.new") == 1
    assert hub.groups("sensors") == ["$Default", "first", "second", "third"]


def test_the_official_client_does_not_find_a_hub_that_was_not_stored(
    data: Path, disk: FailingDisk
) -> None:
    with EmbeddedHub({"sensors": 1}, data=data) as hub:
        root = hub.connection_string()
        disk.fail(0)
        with pytest.raises(ChangeNotStored):
            hub.create_hub("new", 1)
        disk.repair()
        with (
            EventHubProducerClient.from_connection_string(
                f"{root};EntityPath=new", retry_total=0
            ) as producer,
            pytest.raises(EventHubError),
        ):
            producer.send_event(EventData("x"))
        with EventHubProducerClient.from_connection_string(
            hub.connection_string("sensors")
        ) as producer:
            producer.send_event(EventData("x"))
    with EmbeddedHub(data=data) as hub:
        assert hub.hubs == {"sensors": 1}


# -- the start ------------------------------------------------------------------------------------


async def test_a_start_that_cannot_store_its_hubs_changes_nothing(
    data: Path, disk: FailingDisk
) -> None:
    async with EmbeddedHub({"sensors": 1}, data=data):
        pass
    before = stored(data)
    hub = EmbeddedHub({"sensors": 1, "new": 2}, data=data)
    for step in count():
        disk.fail(step)
        try:
            await hub.start()
        except DataDirectoryError:
            disk.repair()
            assert stored(data) == before, disk.failed
        else:
            break
    disk.repair()
    # The same object starts after the failures, and its hubs work.
    async with open_client(hub.connection_string("new"), driver="native") as client:
        await (await client.sender("1")).send([Event(b"x")])
    await hub.stop()
    assert hub.hubs == {"sensors": 1, "new": 2}


async def test_a_hub_that_is_created_before_the_start_is_on_disk(data: Path) -> None:
    hub = EmbeddedHub(data=data)
    hub.create_hub("sensors", 1, ["archive"])
    async with hub:
        await send(hub, b"x")
    async with EmbeddedHub(data=data) as again:
        assert again.groups("sensors") == ["$Default", "archive"]
        assert again.namespace.hub("sensors").partitions[0].log.next_sequence == 1
