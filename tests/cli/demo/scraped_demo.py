"""Questions to a Prometheus that scrapes a running demonstration, and independent counts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from pumphouse.client.batches import Payload
from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import AmqpError
from pumphouse.events import Event
from pumphouse.homes.schema import (
    ALERTS_HUB,
    DAY_MS,
    HUBS,
    MINUTE_MS,
    SENSORS_HUB,
    Reading,
    encode_reading,
    home_id,
)
from pumphouse.telemetry.trace_context import TRACEPARENT
from tests.dashboard.page_client import PageClient
from tests.dashboard.page_options import first
from tests.deploy.boards import metrics_of, queries
from tests.lag.prometheus_server import Prometheus, promtool
from tests.spark.support.waiting import until

T = TypeVar("T")
DEMO_S = 240.0  # until an answer is as expected, while all cores are busy
FIRES = 3
FIRST_HOME = 900  # after the simulated ones
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SINGLE = ("pull-1", "push-1", "fixed-1")  # the hosts at the start
SECOND = "push-2"  # is started later
STEPS = ("Reading taken", "Sifted", "Alert raised", "Row written")  # that have a column
GROUPS = ("tallies", "notices", "archive")  # in the order of the page
# The hub of the demonstration has no data folder, and its Spark queries have no watermark.
IDLE = {"pumphouse.hub.sync", "pumphouse.spark.watermark_delay"}
PROCESSES = {"page", "lag", "hub", "spark", *SINGLE}


class ScrapedDemo:
    """A demonstration with its Prometheus. `folder` is its --data."""

    def __init__(
        self, folder: Path, targets_url: str, page_url: str, prometheus: Prometheus, mark: str
    ) -> None:
        self.folder, self.targets_url, self.mark = folder, targets_url, mark
        self.prometheus = prometheus
        self.page = page_client(page_url)
        self.homes = count(FIRST_HOME)  # that have not been on fire
        ready = json.loads((folder / "hub.out").read_text().partition("\n")[0])
        self.connection = str(ready["namespace_connection_string"])

    # -- independent counts -----------------------------------------------------------------------

    def count_events(self, hub: str) -> int:
        async def end() -> int:
            async with open_client(self.connection, hub) as client:
                names = (await client.properties()).partitions
                found = [await client.partition_properties(name) for name in names]
            return sum(each.last_sequence + 1 for each in found)

        return in_thread(end())

    def query(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "homes" / "homes.db", timeout=30)) as file:
            return file.execute(query, values).fetchall()

    def alerts_in_database(self) -> dict[tuple[str, ...], float]:
        rows = self.query("SELECT kind, count(*) FROM alerts GROUP BY kind")
        return {(kind,): number for kind, number in rows}

    def rows_in_database(self, sensor: str = "%") -> int:
        """The rows of a kind of sensor, or of all."""
        ((number,),) = self.query("SELECT count(*) FROM activity WHERE sensor LIKE ?", sensor)
        return int(number)

    def alert_numbers(self, at_ms: int) -> tuple[int, int, int]:
        """Open alerts, alerts of the last day and homes in alert."""
        open_alerts = "alerts a LEFT JOIN alert_states s ON s.id = a.id WHERE s.closed_at IS NULL"
        query = (
            f"SELECT (SELECT count(*) FROM {open_alerts}),"
            " (SELECT count(*) FROM alerts WHERE at > ?),"
            f" (SELECT count(DISTINCT a.home) FROM {open_alerts})"
        )
        ((in_total, of_day, homes),) = self.query(query, at_ms - DAY_MS)
        return in_total, of_day, homes

    def alert_in_database(self, alert_id: str) -> tuple[Any, ...]:
        """Its home, its kind, and the times of STEPS."""
        activity = "activity c WHERE (c.home, c.sensor, c.at) = (a.home, a.sensor, a.at)"
        query = (
            f"SELECT home, kind, at, (SELECT enqueued FROM {activity}), enqueued, recorded"
            " FROM alerts a JOIN alert_states s ON s.id = a.id WHERE a.id = ?"
        )
        (row,) = self.query(query, alert_id)
        return row

    # -- processes --------------------------------------------------------------------------------

    def pid_of(self, *words: str) -> int:
        """The process of this demonstration whose command line has these words."""
        for entry in Path("/proc").iterdir():
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                    if all(word in command for word in words):
                        return int(entry.name)
            except (OSError, ValueError):
                continue
        raise AssertionError(f"no process with {words}")

    @contextmanager
    def without_readings(self) -> Iterator[None]:
        """Suspend the simulated homes: the hubs and the pipeline come to rest."""
        sender = self.pid_of("homes", "send")
        os.kill(sender, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(sender, signal.SIGCONT)

    def send_fires(self) -> None:
        in_thread(self._send_fires())

    async def _send_fires(self) -> None:
        at = now_ms(SystemClock())
        async with open_client(self.connection, SENSORS_HUB) as client:
            sender = await client.sender()
            for home in map(home_id, islice(self.homes, FIRES)):
                reading = Reading(home, "smoke", at // MINUTE_MS, at, 80, at - 5000, "home", 90)
                body, context = encode_reading(reading), {TRACEPARENT: TRACE}
                await sender.send([Event(body, context, partition_key=home)])

    def reject_a_send(self) -> None:
        """Until then the metric of rejected sends has no series."""

        async def send() -> None:
            async with open_client(self.connection, ALERTS_HUB) as client:
                sender = await client.batch_sender("0")
                with suppress(AmqpError):
                    await sender.deliver(Payload(b"\xff", 0, 1))

        in_thread(send())

    def fires(self) -> list[tuple[str, str]]:
        """The id and the trace of the alerts of `send_fires`."""
        return self.query(
            "SELECT a.id, t.trace FROM alerts a JOIN alert_traces t ON a.id = t.id"
            " WHERE a.home >= ?",
            home_id(FIRST_HOME),
        )

    def start_host(self, group: str) -> str:
        """Start one more host of a group, as the page does. Returns its name."""
        watched = in_thread(self.page.get("/api/about")).json["groups"]
        keys = [each["key"] for each in watched]
        response = in_thread(self.page.post("/api/hosts/add", {"key": keys[GROUPS.index(group)]}))
        return str(response.json["name"])


def page_client(url: str) -> PageClient:
    address = urlsplit(url)
    return PageClient(address.port or 0, parse_qs(address.query)["token"][0])


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own: the browser has the loop of this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


# -- what every process serves --------------------------------------------------------------------


def check_pages(demo: ScrapedDemo) -> None:
    """Every process is live and ready, and promtool accepts its metrics."""
    targets: dict[str, str] = {}

    def are_listed() -> bool:
        groups = json.loads(read(demo.targets_url))
        targets.update({each["labels"]["process"]: each["targets"][0] for each in groups})
        return targets.keys() == PROCESSES

    until(are_listed, DEMO_S)
    for name, address in targets.items():
        assert read(f"http://{address}/livez") == "ok\n", name
        until(lambda address=address: is_ready(address), DEMO_S, what=f"{name} is not ready")  # type: ignore[misc]
        checked = promtool("check", "metrics", text=read(f"http://{address}/metrics"))
        assert (checked.returncode, checked.stdout) == (0, ""), name


def read(url: str) -> str:
    with urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
        return text


def is_ready(address: str) -> bool:
    try:
        return read(f"http://{address}/readyz") == "ok\n"
    except OSError:
        return False


# -- questions ------------------------------------------------------------------------------------


def check_counts(demo: ScrapedDemo) -> None:
    """The metrics equal the counts of the hubs and of the database, when all has come to rest."""
    answers = demo.prometheus.until
    demo.send_fires()
    with demo.without_readings():
        until(lambda: demo.alerts_in_database().get(("fire",), 0) >= FIRES, DEMO_S, "no fire")
        assert [trace for _, trace in demo.fires()] == [TRACE] * FIRES
        sent = demo.count_events(SENSORS_HUB)
        answers("sum(homes_readings_total) + sum(homes_malformed_readings_total)", {(): sent})
        answers('sum(pumphouse_hub_received_events_total{hub="sensors"})', {(): sent})
        answers("sum(pumphouse_spark_lag_events)", {(): 0})
        ends: dict[tuple[str, ...], float] = {(hub,): demo.count_events(hub) for hub in HUBS}
        assert ends[SENSORS_HUB,] == sent  # the homes are suspended
        answers("sum by (hub) (pumphouse_hub_partition_end_sequence + 1)", ends, "hub")
        malformed = ends["deadletter",]
        answers("sum(homes_malformed_readings_total)", {(): malformed})
        answers("sum by (kind) (homes_alerts_total) > 0", demo.alerts_in_database(), "kind")
        answers("homes_sent_to_alert_seconds_count", {(): sum(demo.alerts_in_database().values())})
        answers("homes_sent_to_row_seconds_count", {(): demo.rows_in_database()})
        check_page_numbers(demo)


def check_page_numbers(demo: ScrapedDemo) -> None:
    """The page shows the alerts of the database, and what a person does with one is stored."""
    assert shown_numbers(demo)["homes_in_alert"] >= FIRES
    for alert_id, _ in demo.fires():
        details = in_thread(demo.page.get(f"/api/alert?id={alert_id}")).json
        assert details["trace"] == TRACE.split("-")[1]
        alert = details["alert"]
        steps = {step["name"]: step["at"] for step in details["steps"]}
        shown = (alert["home"], alert["kind"], *(steps[name] for name in STEPS))
        assert shown == demo.alert_in_database(alert_id)
        assert [each["raised"] for each in details["activities"]].count(True) == 1
    in_thread(demo.page.post("/api/alerts/close", {"id": alert_id, "by": "Ada"}))
    closed = "SELECT closed_by FROM alert_states WHERE id = ? AND closed_at IS NOT NULL"
    assert demo.query(closed, alert_id) == [("Ada",)]
    shown_numbers(demo)


def shown_numbers(demo: ScrapedDemo) -> Any:
    """The numbers of the page, when those of alerts are the numbers of the database."""

    def agree(data: Any) -> bool:
        shown = (data["alerts_open"], data["alerts_day"], data["homes_in_alert"])
        return shown == demo.alert_numbers(data["at"])

    return in_thread(first(demo.page, "/stream/homes", "homes", agree))


def check_added_kind(demo: ScrapedDemo, sensor: str) -> None:
    """The homes send the kind of sensor that a file adds, and the stages keep its readings."""
    demo.prometheus.until_series(f'homes_readings_total{{kind="{sensor}"}} > 0')
    until(lambda: demo.rows_in_database(sensor) > 0, DEMO_S, f"no row of {sensor}")


def check_lag_of_a_killed_host(demo: ScrapedDemo) -> None:
    """Its group falls behind, the others do not; its series and its address vanish."""
    lag = "eventhub_consumergroup_group_sum_lag"
    os.kill(demo.pid_of("pumphouse.dashboard.monitors.host", SINGLE[0]), signal.SIGKILL)
    demo.prometheus.until_series(f'delta({lag}{{group="tallies"}}[15s]) > 0')
    others = f'max({lag}{{group!="tallies"}})'
    demo.prometheus.until_series(f'{lag}{{group="tallies"}} > 10 + scalar({others})')
    demo.prometheus.until(f'count(up{{process="{SINGLE[0]}"}})', {})
    status = 'count(eventhub_consumergroup_status{group="tallies"} == 3)'
    demo.prometheus.until(status, {(): 16})


def check_boards(demo: ScrapedDemo) -> None:
    """Every query of the boards finds values, while alerts, hand-overs and a rejection occur.

    Of a query with a fallback, the first operand does.
    """
    asked = [query.partition(" or ")[0] for _, query in queries() if not is_idle(query)]
    assert len(asked) == len(queries()) - len(IDLE) > 30
    demo.send_fires()
    demo.reject_a_send()
    assert demo.start_host("notices") == SECOND
    demo.prometheus.until_series(*asked)


def is_idle(query: str) -> bool:
    return any(metric.name in IDLE for metric in metrics_of(query))


def check_processors(demo: ScrapedDemo) -> None:
    """Every partition of every group has one owner, also after hand-overs to a second host."""
    metric = "pumphouse_processor_owned_partitions"
    hosts: dict[tuple[str, ...], float] = {("pull-1",): 16, ("fixed-1",): 16}
    demo.prometheus.until(metric, hosts | {("push-1",): 8, (SECOND,): 8}, "host")
    owned: dict[tuple[str, ...], float] = {(group,): 16 for group in GROUPS}
    demo.prometheus.until(f"sum by (group) ({metric})", owned, "group")
    handed_over = 'sum(pumphouse_processor_handoffs_total{group="notices", outcome="clean"})'
    demo.prometheus.until(f"{handed_over} >= bool 8", {(): 1})
    times = 'sum(pumphouse_processor_handoff_seconds_count{group="notices"})'
    demo.prometheus.until(f"{times} - {handed_over}", {(): 0})
