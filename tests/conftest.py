"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from pumphouse.telemetry.meter import METER
from tests.azurite.fixtures import azurite, storage
from tests.groups import pytest_xdist_make_scheduler
from tests.postgres.fixtures import postgres
from tests.redis.fixtures import redis

__all__ = ["azurite", "postgres", "pytest_xdist_make_scheduler", "redis", "storage"]

# Long tests start first, so that no worker waits for one of them at the end.
LONG = (
    "tests/benchmarks/test_short_forms",
    "tests/cli/demo/",
    "tests/test_docs.py",
    "tests/soak/",
)

settings.register_profile("project", deadline=None, print_blob=True)
settings.register_profile("few", settings.get_profile("project"), max_examples=20)
settings.load_profile("project")

# Half of what a JVM costs in its first minute is optimising code that runs for a minute, and half
# of the rest is loading classes, which scripts/spark-archive stores. A JVM ignores the archive of
# another Java or Spark.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1"
ARCHIVE = Path(__file__).parents[1] / ".venv" / "spark.jsa"
if ARCHIVE.exists():
    JVM_OPTIONS += f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS)

# Some tests import OpenTelemetry: the clients of others must not record metrics for that.
METER.uses_opentelemetry = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the thousands of collected tests out of the garbage collector.

    They live as long as the process. Each full collection looked at all of them for 0.3 s, and some
    fixtures request one per test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup() -> None:
    """A command that served metrics in this process leaves them on; other tests expect none."""
    METER.is_served = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that take minutes each unless their marker is requested, and tests of features
    that the installed Spark lacks."""
    deselect(config, items, {item for item in items if is_for_other_spark(item)})
    for marker in ("cluster", "soak", "proof"):
        requested = marker == "proof" and config.getoption("--proof")
        if not requested and marker not in str(config.getoption("-m")):
            deselect(config, items, {item for item in items if item.get_closest_marker(marker)})
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def is_for_other_spark(item: pytest.Item) -> bool:
    """Whether a test is for another Spark: it has the marker `needs`, or `lacks`."""
    needed = [marker.args[0] for marker in item.iter_markers("needs")]
    unwanted = [marker.args[0] for marker in item.iter_markers("lacks")]
    if not needed and not unwanted:
        return False
    from pumphouse.spark.versions.features import has

    return not all(map(has, needed)) or any(map(has, unwanted))


def deselect(config: pytest.Config, items: list[pytest.Item], unwanted: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item in unwanted])
    items[:] = [item for item in items if item not in unwanted]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--proof",
        action="store_true",
        help="run every mutant and seed of the lease code, and long histories of every store",
    )
    # pytest reads options only from the conftest of the folder in which it starts.
    parser.addoption(
        "--variants",
        default="plain,tls,websocket,durable",
        help="hub variants to test: plain, tls, websocket, wss, durable (restarts between sends)",
    )
    parser.addoption(
        "--every-variant",
        action="store_true",
        help="run every conformance test on each variant; default: plain and a share of the others",
    )
