"""Who plays in the demonstration, and on which hubs. Pure: what to start, not the starting.

options -> Cast -> players (hub, senders, Spark) and the page with its fleets
           ^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pumphouse.cli.demo.processes import Part
from pumphouse.homes.schema import ACTIVITY_HUB, GROUPS, HUBS, PARTITIONS

# A group for each face of the processors, on the hub that all of them read.
FACES = {"pull": "tallies", "push": "notices", "fixed": "archive"}
FLEET_HUB = ACTIVITY_HUB
LEASE_S = 10.0
RETENTION_BYTES = "48MB"  # of each partition: about a quarter of an hour of all homes
# Of everything a little: an alert a minute or so among 100,000 homes.
INCIDENTS = "break-in=6,fire=4,forgotten-window=4,silent-sensor=2"
TROUBLES = (
    *("--incidents", INCIDENTS, "--late", "0.001", "--duplicates", "0.001"),
    *("--malformed", "0.0002", "--faults", "0.0002", "--low-battery", "0.002"),
)
CONNECTION_VAR = "EVENT_HUB_CONN_STR"


@dataclass(frozen=True, slots=True)
class Cast:
    """One demonstration. The folder holds its logs, leases, checkpoints and results."""

    folder: Path
    homes: int
    seed: int = 1
    partitions: int = PARTITIONS
    azure: str | None = field(default=None, repr=False)  # a namespace to play on, in place of ours

    @property
    def results(self) -> Path:
        return self.folder / "homes"

    @property
    def status(self) -> Path:
        """What the Spark stages say of themselves."""
        return self.results / "status.json"

    @property
    def store(self) -> str:
        return str(self.folder / "leases.db")

    @property
    def config(self) -> Path:
        return self.folder / "config.json"


def groups_of(hub: str) -> tuple[str, ...]:
    """The consumer groups that a hub must have."""
    return (*GROUPS, *FACES.values()) if hub == FLEET_HUB else GROUPS


def hubs_config(partitions: int) -> dict[str, Any]:
    """The hubs and groups, as `pumphouse up --config` takes them."""
    entities = [
        {
            "Name": hub,
            "PartitionCount": partitions,
            "ConsumerGroups": [{"Name": group} for group in groups_of(hub)],
        }
        for hub in HUBS
    ]
    return {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Entities": entities}]}}


def hub(cast: Cast) -> Part:
    words = ["up", "--port", "0", "--config", str(cast.config), "-o", "json"]
    return Part("hub", [*words, "--retention-bytes", RETENTION_BYTES])


def stages(cast: Cast, connection: str) -> Part:
    words = ["homes", "run", "--data", str(cast.results)]
    return Part("spark", words, {CONNECTION_VAR: connection})


def senders(cast: Cast, connection: str, homes: int) -> Part:
    words = ["homes", "send", "--homes", str(homes), "--rate", "realtime", "--seed", str(cast.seed)]
    return Part("homes", [*words, *TROUBLES], {CONNECTION_VAR: connection})
