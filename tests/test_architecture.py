"""The map is a test: who may import whom, and which files know neither IO, time nor chance.

Only what a file itself imports is judged, wherever in the file that is written.
"""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pumphouse"

# room or module -> the rooms it may look into, beside itself and the shared nouns
MAP = {
    "amqp": "",
    "leases": "",
    "hub": "amqp",
    "client": "amqp",
    "processor": "leases client",
    "simulation": "processor leases hub client",
    "spark": "processor leases client",
    "homes": "spark processor client leases",
    "dashboard": "homes processor leases client",
}
EVERYTHING = " ".join(MAP)
NOUNS = "errors events clock"
MAP |= {"__init__": EVERYTHING, "cli": EVERYTHING, "__main__": "cli", "pytest_plugin": "hub"}
MAP |= dict.fromkeys(NOUNS.split(), "")

# A pure file sees pure files only. A name without a dot stands for all of that room.
PURE = """amqp errors events hub.epochs hub.routing hub.filters hub.auth hub.issuer hub.annotations
    hub.quotas hub.emulator_config hub.callers hub.rates
    leases.model leases.census leases.strategies leases.rules leases.fencing
    leases.blob_names leases.blob_rows leases.blob_answers
    leases.bloblease_body leases.bloblease_steps
    processor.plan processor.options processor.overview processor.resets
    spark.offsets spark.planner spark.positions spark.options spark.catalogue spark.durations
    spark.marks spark.identities spark.advice spark.tenancy spark.tenancyoptions
    homes.schema homes.sensors homes.rhythm homes.incidents homes.mishaps homes.bodies homes.days
    homes.dice homes.replay homes.slices homes.partitions
    homes.seen homes.past homes.rules homes.unusual homes.score homes.verdicts
    homes.parquet homes.positions homes.minutes homes.upkeep homes.sharing dashboard.snapshot
    dashboard.lanes dashboard.rates dashboard.columns dashboard.town dashboard.alertbook
    dashboard.delays dashboard.homesview dashboard.guard dashboard.sse
    client.connection_string client.sas client.selectors client.batches client.rows client.base
    client.routes client.retries client.refusals client.prefetch client.places
    client.azure_errors"""
IMPURE = """asyncio logging os pathlib random secrets select socket ssl subprocess
    threading time"""
# The type of an argument: whoever passes one has chosen the seed.
HARMLESS = "random.Random"


def is_pure(dotted: str) -> bool:
    return any(f"{dotted}.".startswith(f"{name}.") for name in PURE.split())


def imports(path: str, source: str) -> Iterator[str]:
    """Everything a file imports, as absolute dotted names."""
    package = ["pumphouse", *PurePath(path).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def faults(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at this path below pumphouse/."""
    here = PurePath(path).parts[0].removesuffix(".py")
    if here not in MAP:
        return [f"{here} is not on the map"]
    pure = is_pure(".".join(PurePath(path).with_suffix("").parts))
    found = []
    for target in imports(path, source):
        top, _, inside = target.partition(".")
        if top == "pumphouse":
            if inside.partition(".")[0] not in [here, *MAP[here].split(), *NOUNS.split()]:
                found.append(f"{here} may not import {target}")
            elif pure and not is_pure(inside):
                found.append(f"a pure file may not import {target}")
        elif pure and top in IMPURE.split() and target != HARMLESS:
            found.append(f"a pure file may not import {target}")
    return found


@pytest.mark.parametrize("path", [p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py")])
def test_a_file_keeps_to_the_map(path: str) -> None:
    assert faults(path, (SOURCE / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("hub/log.py", "import asyncio, pumphouse.amqp.types, pumphouse.clock, numpy", None),
        ("hub/log.py", "from . import epochs", None),
        ("leases/strategies.py", "from random import Random", None),
        ("hub/log.py", "import pumphouse.client", "hub may not import pumphouse.client"),
        ("hub/log.py", "from pumphouse import leases", "hub may not import pumphouse.leases"),
        ("hub/log.py", "from ..spark import sink", "hub may not import pumphouse.spark.sink"),
        ("amqp/a.py", "def f(): import socket", "a pure file may not import socket"),
        ("amqp/a.py", "from os.path import join", "a pure file may not import os.path.join"),
        ("amqp/a.py", "from random import random", "a pure file may not import random.random"),
        ("hub/epochs.py", "from . import log", "a pure file may not import pumphouse.hub.log"),
        (
            "hub/auth.py",
            "from pumphouse import clock",
            "a pure file may not import pumphouse.clock",
        ),
        ("utils/__init__.py", "", "utils is not on the map"),
        ("misc.py", "", "misc is not on the map"),
    ],
)
def test_a_fault_is_seen(path: str, source: str, fault: str | None) -> None:
    assert faults(path, source) == ([fault] if fault else [])
