"""A Spark session for the tests of the stages, and the hubs of the homes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import GROUPS, HUBS
from pumphouse.hub.embedded import EmbeddedHub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pumphouse.spark import session

    running = session("tests of homes", "local[2]", {"spark.log.level": "OFF"})
    yield running
    running.stop()


@pytest.fixture
def homes_hub(event_hub: EmbeddedHub) -> EmbeddedHub:
    """The four hubs of the homes with two partitions each, and their consumer groups."""
    for hub in HUBS:
        event_hub.create_hub(hub, 2)
        for group in GROUPS:
            event_hub.create_group(hub, group)
    return event_hub


@pytest.fixture
def namespace(homes_hub: EmbeddedHub) -> HomesNamespace:
    return HomesNamespace(homes_hub.connection_string())
