"""The storage account of the tests: start, clock, end, and the counting proxy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from azure.storage.blob.aio import BlobServiceClient

from tests.azurite import server
from tests.azurite.fixtures import Storage
from tests.azurite.server import Azurite


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "MAIN", tmp_path / "main.js")
    with pytest.raises(RuntimeError, match="run scripts/npm-ci, or make test"):
        Azurite().start()


def test_a_failed_start_shows_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "main.js"
    broken.write_text("console.log('no disk'); process.exit(1);")
    monkeypatch.setattr(server, "MAIN", broken)
    azurite = Azurite()
    with pytest.raises(RuntimeError, match="no disk"):
        azurite.start()
    azurite.stop()


async def test_the_clock_can_be_advanced(storage: Storage) -> None:
    dates: list[float] = []
    async with BlobServiceClient.from_connection_string(storage.direct) as account:
        container = account.get_container_client(storage.container)
        await container.create_container()
        for name in ("before", "after"):
            await container.upload_blob(name, b"")
            properties = await container.get_blob_client(name).get_blob_properties()
            dates.append(properties.last_modified.timestamp())
            storage.azurite.advance(1000)
    assert dates[1] - dates[0] >= 1000


def test_it_ends_with_its_parent_process() -> None:
    with Azurite() as azurite:
        process = azurite._process
        assert isinstance(process, subprocess.Popen)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


async def test_the_proxy_counts_requests_by_operation(storage: Storage) -> None:
    async with BlobServiceClient.from_connection_string(storage.connection_string) as account:
        container = account.get_container_client(storage.container)
        await container.create_container()
        blob = await container.upload_blob("x", b"")
        await blob.set_blob_metadata({"a": "b"})
        await blob.get_blob_properties()
        lease = await blob.acquire_lease(15)
        await lease.release()
        await blob.delete_blob()
        assert [one async for one in container.list_blobs()] == []
    assert storage.proxy.requests == {
        "put container": 1,
        "put blob": 1,
        "set metadata": 1,
        "head blob": 1,
        "acquire lease": 1,
        "release lease": 1,
        "delete blob": 1,
        "list": 1,
    }
