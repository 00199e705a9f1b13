"""Where Spark applications live together: two hubs, a store, and a view of it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .fleet import App, Hubs, arrived, hubs_up, until
from .leases import Leases


class Street:
    """Hubs, a store, and the applications that were started there."""

    def __init__(
        self, folder: Path, hubs: Hubs, lease_s: float, renew_s: float, interval_s: float
    ) -> None:
        self.folder, self.hubs, self.lease_s, self.interval_s = folder, hubs, lease_s, interval_s
        self.leases = Leases(f"sqlite:///{folder}/leases.db", hubs.group())
        self.apps: list[App] = []
        self._times = {
            "leaseDuration": f"{lease_s:g}s",
            "renewInterval": f"{renew_s:g}s",
            "cycleInterval": f"{interval_s:g}s",
        }

    def start(
        self, host: str, master: str = "local[2]", form: str = "eventhubs", **options: str
    ) -> App:
        given = {
            "connectionString": self.hubs.connection("sensors"),
            "startingPosition": "earliest",
            "assignment": "steady",
            "store": self.leases.store,
            "host": host,
            "maxEventsPerTrigger": "4000",
            "partitionsPerTask": str(-(-self.hubs.partitions // 4)),
        }
        app = App(self.folder / host, self.job(host, master, form, given | self._times | options))
        self.apps.append(app)
        return app

    def job(self, host: str, master: str, form: str, options: dict[str, str]) -> dict[str, object]:
        return {
            "master": master,
            "format": form,
            "target": self.hubs.connection("activity"),
            "checkpoint": str(self.folder / host / "checkpoint"),
            "trigger": "200 milliseconds",
            "options": options,
        }

    # -- waiting ----------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], what: str) -> float:
        """Until it is so; how long it took."""
        since_s = time.monotonic()
        try:
            until(done)
        except AssertionError:
            told = [f"{app.folder.name}: {app.said()[-3000:]}" for app in self.apps]
            raise AssertionError("\n".join([what, *told])) from None
        return time.monotonic() - since_s

    def until_shared(self, **wanted: int) -> float:
        def shared() -> bool:
            return dict(self.leases.shares(self.lease_s)) == wanted

        return self.until(shared, f"it is never shared as {wanted}")

    def until_member(self, host: str) -> None:
        """Until others can see that it lives; an earlier one of that name does not count."""
        since_s = time.monotonic()

        def seen() -> bool:
            age_s = self.leases.members().get(host)
            return age_s is not None and age_s < time.monotonic() - since_s

        self.until(seen, f"{host} does not join")

    def until_moving(self) -> None:
        """Until something more arrives."""
        before = arrived(self.hubs)
        self.until(lambda: arrived(self.hubs) > before, "nothing arrives")

    def until_done(self, app: App, batches: int = 2) -> None:
        """Until an application has done so many more batches."""
        before = max(app.batches("commits"), default=-1)
        self.until(
            lambda: max(app.batches("commits"), default=-1) >= before + batches,
            f"{app.folder.name} stands still",
        )


@contextmanager
def street_of(
    folder: Path,
    partitions: int,
    lease_s: float = 30.0,
    renew_s: float = 10.0,
    interval_s: float = 10.0,
) -> Iterator[Street]:
    """By default with the times that a query has by default."""
    with hubs_up(folder, partitions) as hubs:
        street = Street(folder, hubs, lease_s, renew_s, interval_s)
        try:
            yield street
        finally:
            for app in street.apps:
                app.go_on()
                app.kill()
