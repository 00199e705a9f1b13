"""The processes of the demonstration and their commands. Pure: nothing is started here.

options -> DemoPlan -> ProcessSpec of the hub, the senders and Spark
           ^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.cli.demo.processes import ProcessSpec
from pumphouse.homes.schema import ACTIVITY_HUB, GROUPS, HUBS, PARTITIONS

# One consumer group for each processor API. All of them read the same hub.
FACES = {"pull": "tallies", "push": "notices", "fixed": "archive"}
FLEET_HUB = ACTIVITY_HUB
LEASE_S = 10.0
RETENTION_BYTES = "48MB"  # per partition: about 15 minutes of 100,000 homes
# About one alert a minute among 100,000 homes.
INCIDENTS = "break-in=6,fire=4,forgotten-window=4,silent-sensor=2"
READING_FAULTS = (
    *("--incidents", INCIDENTS, "--late", "0.001", "--duplicates", "0.001"),
    *("--malformed", "0.0002", "--faults", "0.0002", "--low-battery", "0.002"),
)
CONNECTION_VAR = "EVENT_HUB_CONN_STR"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The settings of one demonstration. Logs, leases, checkpoints and results go to `folder`."""

    folder: Path
    homes: int
    seed: int = 1
    partitions: int = PARTITIONS
    # Connection string of an Azure namespace that replaces the embedded hub.
    azure: str | None = field(default=None, repr=False)
    kinds: Path | None = None  # a file that adds kinds of sensors
    metrics: bool = False  # whether every process serves its metrics, on a free port

    @property
    def results(self) -> Path:
        return self.folder / "homes"

    @property
    def status(self) -> Path:
        """The status file that the Spark stages write."""
        return self.results / "status.json"

    @property
    def database(self) -> str:
        """The database that the stage `record` writes, and that the page reads."""
        return str(self.results / "homes.db")

    @property
    def store(self) -> str:
        return str(self.folder / "leases.db")

    @property
    def config(self) -> Path:
        return self.folder / "config.json"


def groups_of(hub: str) -> tuple[str, ...]:
    """The consumer groups that a hub needs."""
    return (*GROUPS, *FACES.values()) if hub == FLEET_HUB else GROUPS


def hubs_config(partitions: int) -> dict[str, Any]:
    """The hubs and groups as a config file for `pumphouse up --config`."""
    entities = [
        {
            "Name": hub,
            "PartitionCount": partitions,
            "ConsumerGroups": [{"Name": group} for group in groups_of(hub)],
        }
        for hub in HUBS
    ]
    return {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Entities": entities}]}}


def hub_process(plan: DemoPlan) -> ProcessSpec:
    arguments = ["up", "--port", "0", "--config", str(plan.config), "-o", "json"]
    arguments += ["--retention-bytes", RETENTION_BYTES, *metrics_arguments(plan)]
    return ProcessSpec("hub", arguments)


def metrics_arguments(plan: DemoPlan) -> list[str]:
    return ["--metrics-port", "0"] if plan.metrics else []


def kinds_arguments(plan: DemoPlan) -> list[str]:
    return [] if plan.kinds is None else ["--kinds", str(plan.kinds)]


def spark_process(plan: DemoPlan, connection: str) -> ProcessSpec:
    arguments = ["homes", "run", "--data", str(plan.results), "--database", plan.database]
    arguments += ["-o", "json", *metrics_arguments(plan), *kinds_arguments(plan)]
    return ProcessSpec("spark", arguments, {CONNECTION_VAR: connection})


def sender_process(plan: DemoPlan, connection: str, homes: int) -> ProcessSpec:
    arguments = ["homes", "send", "--homes", str(homes), "--rate", "realtime"]
    # So that every alert of a reading has its trace.
    arguments += ["--seed", str(plan.seed), "--traces", "alarms"]
    return ProcessSpec(
        "homes", [*arguments, *READING_FAULTS, *kinds_arguments(plan)], {CONNECTION_VAR: connection}
    )
