"""A streaming query on a local Spark while its hub cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks._spark_start import start_query
from tests.spark.conftest import Hub
from tests.spark.support.network import Network
from tests.spark.support.queries import ENDED_S, numbered
from tests.spark.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("queries"),
]

# Each attempt of a client fails at once: what waits is the stream.
OPTIONS = {"retry.total": "0", "startingPosition": "earliest"}


@pytest.fixture
def network(hub: Hub) -> Iterator[Network]:
    with Network(hub.connection) as network:
        yield network


@pytest.fixture
def copies(hub: Hub) -> Hub:
    hub.embedded.create_hub("copies", 4)
    return Hub(hub.embedded, "copies")


def copy(
    spark: SparkSession, network: Network, folder: Path, outage: str = "10m"
) -> StreamingQuery:
    """A query that reads a hub and writes another one over the same network."""
    options = {**OPTIONS, "outageTimeout": outage}
    frame = spark.readStream.format("eventhubs")
    rows = frame.options(connectionString=network.connection, **options).load()
    to = network.connection.replace("EntityPath=sensors", "EntityPath=copies")
    writer = rows.select("body").writeStream.format("eventhubs")
    writer = writer.option("connectionString", to).option("checkpointLocation", str(folder))
    writer = writer.option("retry.total", "0").option("outageTimeout", outage)
    return start_query(writer.trigger(processingTime="0 seconds").start)


def copied(copies: Hub) -> list[str]:
    return sorted(event.body.decode() for event in copies.all_events())


def test_a_query_that_reads_and_writes_survives_an_outage(
    spark: SparkSession, hub: Hub, network: Network, copies: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(100))
    query = copy(spark, network, tmp_path)
    until(lambda: len(copied(copies)) == 100)
    network.cut()
    refused = network.refused
    hub.send(*numbered(50, "during-"))
    until(lambda: network.refused >= refused + 4)
    assert query.isActive
    network.restore()
    # A task that was cut off before its acknowledgement sends its rows again.
    until(lambda: len(set(copied(copies))) == 150)
    assert query.isActive
    query.stop()


def test_a_query_fails_with_a_sentence_if_an_outage_lasts_too_long(
    spark: SparkSession, hub: Hub, network: Network, copies: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(10))
    query = copy(spark, network, tmp_path, outage="2s")
    until(lambda: len(copied(copies)) == 10)
    network.cut()
    with pytest.raises(Exception, match=r"The host is 127\.0\.0\.1, from") as failed:
        query.awaitTermination(ENDED_S)
    assert "Traceback" not in str(failed.value)
    assert "SharedAccessKey" not in str(failed.value)
