"""The import map: who may import whom, and which files use no IO, time or chance.

Every import statement of a file counts, also one inside a function.
"""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pumphouse"
TESTS = Path(__file__).parent

# room or module -> the rooms it may look into, beside itself and the shared nouns
MAP = {
    "telemetry": "",
    "amqp": "",
    "leases": "",
    "hub": "amqp telemetry",
    "client": "amqp telemetry",
    "processor": "leases client telemetry",
    "lag": "processor leases client telemetry",
    "scaler": "lag processor leases client telemetry",
    "simulation": "processor leases hub client",
    "spark": "processor leases client telemetry",
    "homes": "spark processor client leases telemetry",
    "dashboard": "homes processor leases client telemetry",
}
EVERYTHING = " ".join(MAP)
NOUNS = """errors escapes events clock forks http_requests logs option_names private_files
    websocket_transport"""
MAP |= {
    "__init__": EVERYTHING + " _renamed",
    "cli": EVERYTHING,
    "__main__": "cli",
    "pytest_plugin": "hub",
}
MAP |= dict.fromkeys([*NOUNS.split(), "_renamed"], "")

# Inside a room: sub-package -> the sub-packages of that room it may import. "." stands for the
# modules of the room itself, which may import every sub-package.
INSIDE: dict[str, dict[str, str]] = {
    "telemetry": {},
    "lag": {},
    "scaler": {},
    "amqp": {"columnar": "."},
    "client": {"native": ".", "azure": ".", "bulk": ". native"},
    "hub": {
        "limits": ".",
        "frames": ". limits",
        "access": ". limits",
        "storage": ". access frames",
        "links": ". access frames limits storage faults",
        "listeners": ". access limits",
        "faults": ".",
    },
    "leases": {
        "strategies": ".",
        "stores": ".",
        "stores.sqlite": ". stores",
        "stores.postgres": ". stores",
        "stores.redis": ". stores",
        "stores.blob": ". stores",
        "stores.blob_lease": ". stores stores.blob",
    },
    "processor": {
        "admin": ".",
        "checks": ".",
        "handling": ". checks recording",
        "hosting": ". checks handling health",
        "health": ". handling",
        "recording": ".",
    },
    "spark": {
        "driver": ". lag read tenancy",
        "read": ". lag tenancy",
        "write": ".",
        "lag": ". versions",
        "tenancy": ". driver lag",
        "versions": ". driver write",
        "several_hubs": ". driver",
    },
    "homes": {
        "kinds": "",
        "simulator": ". kinds",
        "state": "",
        "sift": ". kinds simulator state watch",
        "watch": ". kinds state",
        "record": ". kinds",
    },
    "dashboard": {"views": ".", "monitors": ". views", "server": ". views monitors"},
    "simulation": {"faults": ".", "invariants": "."},
    "cli": {"common": "", "homes": ". common", "demo": ". common homes"},
}

# Room -> its modules that other rooms may import. A package named here exports names: its own
# modules stay internal to the room.
SEAMS = {"client": "base factory bulk"}

# About sixteen modules and the package's own file.
FOLDER_MAX = 18

# A pure file sees pure files only. A name without a dot stands for all of that room.
PURE = """telemetry.definitions telemetry.trace_context
    amqp errors escapes events http_requests logs hub.epochs hub.routing hub.filters
    hub.access.auth hub.access.token_issuer hub.annotations hub.frames hub.limits.quotas
    hub.emulator_config hub.access.http_callers hub.limits.lengths hub.limits.sections
    hub.limits.admission hub.limits.turns hub.rates hub.storage.backlog
    hub.changes hub.disk_errors
    hub.storage.records hub.storage.enqueued_times
    option_names leases.model leases.census leases.strategies
    leases.rules leases.fencing leases.stores.limits leases.stores.postgres.schema
    leases.stores.postgres.rows leases.stores.redis.scripts leases.stores.redis.rows
    leases.stores.blob.names leases.stores.blob.rows
    leases.stores.blob.responses leases.stores.blob_lease.body
    leases.stores.blob_lease.formats leases.stores.blob_lease.steps processor.plan processor.options
    processor.admin.overview processor.admin.resets processor.admin.resumes processor.checks.gaps
    processor.checks.values processor.handling.call_size processor.handling.key_order
    processor.handling.pauses
    processor.health.states
    spark.offsets
    spark.planner spark.driver.batch_size spark.positions spark.options spark.catalogue
    spark.option_values spark.driver.filters
    spark.lag.known_positions spark.deduplication spark.advice spark.generation
    spark.tenancy.journal spark.several_hubs.selection spark.several_hubs.sources
    spark.tenancy.states spark.tenancy.options homes.schema homes.simulator.sensors
    homes.simulator.people homes.simulator.added_sensors homes.simulator.incidents
    homes.simulator.incident_values
    homes.simulator.reading_faults homes.simulator.record_encoding
    homes.simulator.day_cache homes.simulator.hashed_random homes.simulator.replay
    homes.simulator.recording homes.simulator.recorded_files
    homes.simulator.time_slices homes.simulator.traces homes.trace_text
    homes.partition_hash homes.duplicates
    homes.watch.alarms homes.watch.alerts homes.watch.history homes.watch.rules homes.watch.unusual
    homes.kinds.model homes.kinds.tables homes.kinds.parsing homes.kinds.defaults
    homes.exact_validation homes.record.manifest homes.record.positions homes.record.sums
    homes.record.alert_states homes.record.newest_values homes.record.recorded
    homes.stage_status homes.stage_counts homes.watch.sharing
    dashboard.server.guard dashboard.server.sse
    client.connection_string client.sas client.selectors client.batches client.event_decoding
    client.event_columns client.layout_decoding
    client.base client.routes client.retries client.errors client.native.prefetch
    client.positions client.azure.errors dashboard.views lag.enqueued_times lag.series
    scaler.decisions"""
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


def subpackage(dotted: str) -> str:
    """The sub-package of its room that a dotted name below pumphouse lies in: "." for none."""
    room, *names = dotted.split(".")
    known = [n for n in INSIDE.get(room, {}) if f"{'.'.join(names)}.".startswith(f"{n}.")]
    return max(known, key=len, default=".")


def may_look(here: str, target: str) -> bool:
    """Whether a module may import another of the same room, both dotted below pumphouse."""
    allowed = INSIDE.get(here.partition(".")[0], {})
    own, other = subpackage(here), subpackage(target)
    return own in (".", other) or other in allowed[own].split()


def crosses_seam(target: str) -> bool:
    """Whether a dotted name below pumphouse is internal to a room with a seam."""
    room, *names = target.split(".")
    if room not in SEAMS or not names:
        return False
    module = SOURCE.joinpath(room, *names[:2]).with_suffix(".py")
    return names[0] not in SEAMS[room].split() or (len(names) > 1 and module.exists())


def faults(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at this path below pumphouse/."""
    here = PurePath(path).parts[0].removesuffix(".py")
    if here not in MAP:
        return [f"{here} is not on the map"]
    dotted = ".".join(PurePath(path).with_suffix("").parts)
    pure = is_pure(dotted)
    found = []
    for target in imports(path, source):
        top, _, inside = target.partition(".")
        if top == "pumphouse":
            if inside.partition(".")[0] not in [here, *MAP[here].split(), *NOUNS.split()]:
                found.append(f"{here} may not import {target}")
            elif inside.partition(".")[0] != here and crosses_seam(inside):
                found.append(f"{here} may not import {target}: it is internal")
            elif inside.partition(".")[0] == here and not may_look(dotted, inside):
                found.append(f"{here}.{subpackage(dotted)} may not import {target}")
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
        (
            "hub/log.py",
            "import asyncio, pumphouse.amqp.types, pumphouse.clock, numpy",
            None,
        ),
        ("hub/log.py", "from . import epochs", None),
        ("leases/strategies.py", "from random import Random", None),
        (
            "hub/log.py",
            "import pumphouse.client",
            "hub may not import pumphouse.client",
        ),
        (
            "hub/log.py",
            "from pumphouse import leases",
            "hub may not import pumphouse.leases",
        ),
        (
            "hub/log.py",
            "from ..spark import sink",
            "hub may not import pumphouse.spark.sink",
        ),
        ("amqp/a.py", "def f(): import socket", "a pure file may not import socket"),
        ("amqp/a.py", "from os.path import join", "a pure file may not import os.path.join"),
        ("amqp/a.py", "from random import random", "a pure file may not import random.random"),
        (
            "hub/epochs.py",
            "from . import log",
            "a pure file may not import pumphouse.hub.log",
        ),
        (
            "hub/access/auth.py",
            "from pumphouse import clock",
            "a pure file may not import pumphouse.clock",
        ),
        ("hub/storage/a.py", "from pumphouse.hub.access import auth", None),
        (
            "hub/storage/a.py",
            "from pumphouse.hub.links import link",
            "hub.storage may not import pumphouse.hub.links.link",
        ),
        ("spark/a.py", "from pumphouse.client.bulk import BulkClient", None),
        ("cli/a.py", "from pumphouse.client.base import HubClient", None),
        ("client/native/a.py", "from pumphouse.client import routes", None),
        (
            "cli/a.py",
            "from pumphouse.client.native.client import NativeClient",
            "cli may not import pumphouse.client.native.client.NativeClient: it is internal",
        ),
        (
            "cli/a.py",
            "from pumphouse.client import native",
            "cli may not import pumphouse.client.native: it is internal",
        ),
        (
            "spark/a.py",
            "from pumphouse.client.bulk.arrow import TYPES",
            "spark may not import pumphouse.client.bulk.arrow.TYPES: it is internal",
        ),
        ("utils/__init__.py", "", "utils is not on the map"),
        ("misc.py", "", "misc is not on the map"),
    ],
)
def test_a_fault_is_seen(path: str, source: str, fault: str | None) -> None:
    assert faults(path, source) == ([fault] if fault else [])


@pytest.mark.parametrize("room", sorted(INSIDE))
def test_every_sub_package_is_on_the_map(room: str) -> None:
    folders = {p.parent for p in (SOURCE / room).rglob("*.py")} - {SOURCE / room}
    assert {".".join(f.relative_to(SOURCE / room).parts) for f in folders} == set(INSIDE[room])


def test_no_folder_holds_more_than_eighteen_modules() -> None:
    folders = [f for root in (SOURCE, TESTS) for f in (root, *root.rglob("*")) if f.is_dir()]
    sizes = {str(f): len(list(f.glob("*.py"))) for f in folders if "node_modules" not in f.parts}
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_MAX} == {}
