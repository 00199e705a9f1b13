"""`pumphouse lag-exporter`: its pages while hub and store come and go, and how it ends."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.lag.exporter import OBSERVED, LagExporter
from pumphouse.lag.options import lag_options
from pumphouse.lag.poller import HUB
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.stores.sqlite.store import SqliteStore
from pumphouse.telemetry.definitions import POLL_FAILURES, POLL_SECONDS
from tests.azurite.server import KEY, Azurite
from tests.cli.conftest import Call, refused
from tests.cli.conftest import call as call
from tests.lag.exporter_process import STATUS, exporter
from tests.lag.prometheus_server import free_port, promtool

PARTITIONS = {"eventhub_partition_latest_offset", "eventhub_partition_earliest_offset"}
FAILURES = "eventhub_consumergroup_poll_failures_total"
DURATIONS = {f"eventhub_consumergroup_poll_seconds_{end}" for end in ("bucket", "count", "sum")}
OWN = {FAILURES} | DURATIONS  # the exporter's own series
ROOT_KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="


def checkpoint(path: Path, group: Group, sequence: int) -> None:
    async def work() -> None:
        async with SqliteStore(path) as store:
            await store.update_checkpoint(Checkpoint(group, "0", sequence, str(sequence), 1))

    asyncio.run(work())


def hub_at(port: int) -> EmbeddedHub:
    return EmbeddedHub(hubs={"orders": 2}, port=port, root_key=ROOT_KEY)


def test_hub_and_store_come_and_go(tmp_path: Path) -> None:
    path, port = tmp_path / "leases.db", free_port()
    with hub_at(port) as hub:
        connection = hub.connection_string("orders")
    group = Group(f"127.0.0.1:{port}", "orders", "counters")
    with exporter("--store", str(path), connection=connection) as running:
        away = running.until_page("/readyz", 503, "store: lease file")
        assert f"{path} does not exist" in away
        running.until_page("/readyz", 503, "hub: ")
        running.until_names(OWN.issuperset)
        with hub_at(port):
            running.until_page("/metrics", 200, "eventhub_partition_latest_offset")
            assert STATUS not in running.series()
            checkpoint(path, group, 3)
            # A poll between the creation of the file and that of its row finds `$Default` only.
            running.until_group("counters")
            running.until_ready()
            path.rename(tmp_path / "elsewhere.db")
            running.until_page("/readyz", 503, "store: ")
            running.until_names((OWN | PARTITIONS).__eq__)
            (tmp_path / "elsewhere.db").rename(path)
            running.until_ready()
        running.until_page("/readyz", 503, "hub: ")
        running.until_names(OWN.issuperset)
        counts = {labels["part"]: value for labels, value in running.series()[FAILURES]}
        assert counts["hub"] >= 1
        assert counts["store"] >= 2
        assert running.page("/livez") == (200, "ok\n")
        code, output = running.program.end(signal.SIGTERM)
    assert code == 0
    assert "store: responds again" in output
    assert ROOT_KEY not in output


def test_a_store_without_rows_has_the_default_group_only(tmp_path: Path) -> None:
    path, port = tmp_path / "leases.db", free_port()
    asyncio.run(create(path))
    with hub_at(port) as hub:
        connection = hub.connection_string("orders")
        with exporter("--store", str(path), connection=connection) as running:
            running.until_group("$Default")
            groups = {labels["group"] for labels, _ in running.series()[STATUS]}
            assert groups == {"$Default"}
            checkpoint(path, Group(f"127.0.0.1:{port}", "orders", "counters"), 3)
            running.until_group("counters")


def test_a_failure_that_lasts_is_reported_once(tmp_path: Path) -> None:
    """The hub gives each of its responses another number and time."""
    keys = "SharedAccessKeyName=a;SharedAccessKey=b"
    options = lag_options(
        f"Endpoint=sb://127.0.0.1:1;{keys}", "orders", str(tmp_path / "leases.db")
    )
    reported: list[str] = []
    exporter = LagExporter(options, reported.append)
    for number in range(3):
        tracking = f"TrackingId:{number}_G1, Timestamp:2026-11-1{number}"
        exporter._report(HUB, f"no hub 'orders'. {tracking}")
    assert reported == [f"{HUB}: no hub 'orders'."]


async def create(path: Path) -> None:
    """Create a store without rows."""
    async with SqliteStore(path):
        pass


def test_the_page_is_valid_and_has_the_documented_metrics(tmp_path: Path) -> None:
    with hub_at(0) as hub:
        connection, path = hub.connection_string("orders"), tmp_path / "leases.db"
        checkpoint(path, Group(connection.split("/")[2].split(";")[0], "orders"), -1)
        with exporter("--store", str(path), connection=connection) as running:
            running.until_names({metric.name for metric in OBSERVED}.issubset)
            page = running.page("/metrics")[1]
            assert running.program.end(signal.SIGINT) == (0, "")
    checked = promtool("check", "metrics", text=page)
    assert (checked.returncode, checked.stderr) == (0, "")
    types = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    expected = {metric.name: metric.kind for metric in OBSERVED}
    expected |= {
        f"{POLL_FAILURES.name}_total": "counter",
        f"{POLL_SECONDS.name}_seconds": "histogram",
    }
    assert types == expected
    assert ROOT_KEY not in page


def test_a_container_that_is_missing(azurite: Azurite) -> None:
    store = f"{azurite.connection_string()};Container=not-there"
    with hub_at(0) as hub:
        connection = hub.connection_string("orders")
        with exporter("--store", store, connection=connection) as running:
            text = running.until_page("/readyz", 503, "store: ")
            running.until_page("/readyz", 503, "not-there")
            assert KEY not in text
            code, output = running.program.end(signal.SIGTERM)
            assert code == 0
            assert KEY not in output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--store", "memory:"), "its own process only"),
        (("--store", "blob://account"), "invalid blob store"),
        (("--hub", ""), "no hub"),
    ],
)
def test_invalid_options_end_the_command(call: Call, options: tuple[str, ...], reason: str) -> None:
    hub = () if "--hub" in options else ("--hub", "orders")
    assert reason in refused(call("lag-exporter", *hub, *options), 2)
