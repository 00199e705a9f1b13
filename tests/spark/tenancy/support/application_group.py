"""Spark applications that share a consumer group: two hubs, a store, and a view from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.spark.support.waiting import until
from tests.spark.tenancy.support.applications import UNTIL_S, Application
from tests.spark.tenancy.support.copied_events import Hubs, count_copied, run_hubs
from tests.spark.tenancy.support.lease_view import LeaseView


class ApplicationGroup:
    """Hubs, a store, and the applications that a test has started."""

    def __init__(
        self, folder: Path, hubs: Hubs, lease_s: float, renew_s: float, interval_s: float
    ) -> None:
        self.folder, self.hubs, self.lease_s, self.interval_s = folder, hubs, lease_s, interval_s
        self.leases = LeaseView(f"sqlite:///{folder}/leases.db", hubs.group())
        self.applications: list[Application] = []
        self._times = {
            "leaseDuration": f"{lease_s:g}s",
            "renewInterval": f"{renew_s:g}s",
            "cycleInterval": f"{interval_s:g}s",
        }

    def start(
        self, host: str, master: str = "local[2]", form: str = "eventhubs", **options: str
    ) -> Application:
        given = {
            "connectionString": self.hubs.connection("sensors"),
            "startingPosition": "earliest",
            "assignment": "steady",
            "store": self.leases.store,
            "host": host,
            "maxEventsPerTrigger": "4000",
            "partitionsPerTask": str(-(-self.hubs.partitions // 4)),
        }
        settings: dict[str, object] = {
            "master": master,
            "format": form,
            "target": self.hubs.connection("activity"),
            "checkpoint": str(self.folder / host / "checkpoint"),
            "trigger": "200 milliseconds",
            "options": given | self._times | options,
        }
        application = Application(self.folder / host, settings)
        self.applications.append(application)
        return application

    # -- waiting ----------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], what: str) -> float:
        """Wait; the seconds that it took."""
        since_s = time.monotonic()
        try:
            until(done, UNTIL_S, every_s=0.1)
        except AssertionError:
            outputs = [f"{each.folder.name}: {each.output()[-3000:]}" for each in self.applications]
            raise AssertionError("\n".join([what, *outputs])) from None
        return time.monotonic() - since_s

    def until_shared(self, **shares: int) -> float:
        def is_shared() -> bool:
            return dict(self.leases.shares(self.lease_s)) == shares

        return self.until(is_shared, f"the partitions are never shared as {shares}")

    def until_member(self, host: str) -> None:
        """Wait until other hosts can see it; an earlier host of that name does not count."""
        since_s = time.monotonic()

        def is_member() -> bool:
            age_s = self.leases.members().get(host)
            return age_s is not None and age_s < time.monotonic() - since_s

        self.until(is_member, f"{host} does not join")

    def until_progress(self) -> None:
        """Wait until more events are copied."""
        before = count_copied(self.hubs)
        self.until(lambda: count_copied(self.hubs) > before, "no event is copied")

    def until_committed(self, application: Application, batches: int = 2) -> None:
        """Wait until an application has committed more batches."""
        before = max(application.batches("commits"), default=-1)
        self.until(
            lambda: max(application.batches("commits"), default=-1) >= before + batches,
            f"{application.folder.name} commits no batch",
        )


@contextmanager
def application_group(
    folder: Path,
    partitions: int,
    lease_s: float = 30.0,
    renew_s: float = 10.0,
    interval_s: float = 10.0,
) -> Iterator[ApplicationGroup]:
    """By default with the default times of a query."""
    with run_hubs(folder, partitions) as hubs:
        group = ApplicationGroup(folder, hubs, lease_s, renew_s, interval_s)
        try:
            yield group
        finally:
            for application in group.applications:
                application.resume()
                application.kill()
