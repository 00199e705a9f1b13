"""A data directory that is moved, deleted or replaced while its hub runs."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pumphouse.client.base import HubClient, ReaderOptions, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import ChangeNotStored, PumphouseError
from pumphouse.events import EARLIEST, Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.storage import disk_log

REFUSED = "data directory of the hub was moved, deleted or replaced"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def hub(data: Path) -> AsyncIterator[EmbeddedHub]:
    """A restarted hub: its newest segment is not open yet."""
    async with EmbeddedHub({"orders": 2}, data=data) as first, client_of(first) as client:
        await send(client, "0", b"before")
    async with EmbeddedHub(data=data) as hub:
        yield hub


@pytest.fixture
async def client(hub: EmbeddedHub) -> AsyncIterator[HubClient]:
    async with client_of(hub) as client:
        yield client


@pytest.fixture
def no_check(hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub does not notice by its periodic check that its directory is lost."""
    monkeypatch.setattr(hub.namespace.storage, "check", lambda: None)


def client_of(hub: EmbeddedHub) -> HubClient:
    retry = RetryOptions(attempts=0)
    return open_client(hub.connection_string("orders"), driver="native", retry=retry)


async def send(client: HubClient, partition: str, body: bytes) -> None:
    sender = await client.sender(partition)
    try:
        await sender.send([Event(body)])
    finally:
        await sender.close()


async def bodies(client: HubClient, partition: str, count: int) -> list[bytes]:
    reader = await client.reader(ReaderOptions(partition, position=EARLIEST))
    events: list[Event] = []
    while len(events) < count:
        events += await reader.receive(count, 10)
    return [event.body for event in events]


def move(data: Path) -> None:
    data.rename(data.with_name("moved"))


def replace_by_copy(data: Path) -> None:
    move(data)
    shutil.copytree(data.with_name("moved"), data)


def replace_by_empty(data: Path) -> None:
    move(data)
    data.mkdir()


def content(directory: Path) -> dict[str, bytes | None] | None:
    """The directories and files in a directory; None if it does not exist."""
    if not directory.exists():
        return None
    paths = directory.rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("partition", ["0", "1"], ids=["an old segment", "a first segment"])
@pytest.mark.parametrize("lose", [move, shutil.rmtree, replace_by_copy, replace_by_empty])
@pytest.mark.usefixtures("no_check")
async def test_the_first_append_is_refused_before_the_loss_is_noticed(
    client: HubClient, data: Path, lose: Callable[[Path], None], partition: str
) -> None:
    lose(data)
    present = content(data)
    with pytest.raises(PumphouseError, match="data directory was moved, deleted or replaced"):
        await send(client, partition, b"after")
    assert content(data) == present


@pytest.mark.parametrize("lose", [move, shutil.rmtree, replace_by_copy, replace_by_empty])
async def test_every_append_is_refused_after_the_loss_is_noticed(
    hub: EmbeddedHub,
    client: HubClient,
    data: Path,
    lose: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await send(client, "0", b"in an open segment")
    lose(data)
    for _ in range(3):
        hub.tick()
        with pytest.raises(PumphouseError, match=REFUSED) as refusal:
            await send(client, "0", b"after")
        assert "(amqp:internal-error)" in str(refusal.value)
    (record,) = [r for r in caplog.records if "data_directory_lost" in r.getMessage()]
    assert record.levelname == "ERROR"
    assert f"directory={data}" in record.getMessage()
    assert "put the directory back" in record.getMessage()
    with pytest.raises(ChangeNotStored, match="moved, deleted or replaced"):
        hub.create_hub("new")


async def test_a_directory_that_is_put_back_is_used_again(
    hub: EmbeddedHub, client: HubClient, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    move(data)
    hub.tick()
    with pytest.raises(PumphouseError, match=REFUSED):
        await send(client, "0", b"refused")
    data.with_name("moved").rename(data)
    hub.tick()
    await send(client, "0", b"after")
    assert await bodies(client, "0", 2) == [b"before", b"after"]
    assert "data_directory_back" in caplog.text


@pytest.mark.usefixtures("no_check")
async def test_an_accepted_event_is_in_the_moved_directory(
    hub: EmbeddedHub, client: HubClient, data: Path
) -> None:
    await send(client, "0", b"in an open segment")
    move(data)
    await send(client, "0", b"in the same segment")
    await hub.stop()
    async with EmbeddedHub(data=data.with_name("moved")) as again, client_of(again) as reader:
        expected = [b"before", b"in an open segment", b"in the same segment"]
        assert await bodies(reader, "0", 3) == expected


@pytest.mark.usefixtures("no_check")
async def test_a_new_segment_does_not_create_the_directory_of_older_ones(
    client: HubClient, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_log, "FIRST_SEGMENT_BYTES", 500)
    await send(client, "1", bytes(400))
    shutil.rmtree(data / "hubs")
    with pytest.raises(PumphouseError, match="No such file or directory"):
        await send(client, "1", bytes(400))
    assert not (data / "hubs").exists()


async def test_the_working_directory_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with EmbeddedHub({"orders": 1}, data=Path("data")) as hub, client_of(hub) as client:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        await send(client, "0", b"after")
        hub.tick()
        await send(client, "0", b"later")
        assert await bodies(client, "0", 2) == [b"after", b"later"]
    assert list((tmp_path / "other").iterdir()) == []
