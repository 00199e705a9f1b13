"""What every Spark 4 must do, as one short test: SQL, a stream from hub to hub, and its restart.

`make test` runs it on each version.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from benchmarks._spark_start import start_query
from tests.spark.conftest import Hub
from tests.spark.support.queries import ENDED_S, bodies, numbered, read, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("queries"),
]

OPTIONS = {"startingPosition": "earliest", "maxEventsPerTrigger": "20"}


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE TABLE short_form (body BINARY) USING eventhubs")
    yield "short_form"
    spark.sql("DROP TABLE short_form")


def copy(spark: SparkSession, hub: Hub, copies: Hub, folder: Path) -> None:
    """A run of a query that copies what a hub holds."""
    writer = stream(spark, hub, **OPTIONS).writeStream.format("eventhubs")
    writer = writer.options(connectionString=copies.connection, checkpointLocation=str(folder))
    query = start_query(writer.trigger(availableNow=True).start)
    assert query.awaitTermination(ENDED_S)


def test_sql_and_a_stream_from_hub_to_hub_that_is_restarted(
    spark: SparkSession, hub: Hub, tmp_path: Path, table: str
) -> None:
    assert spark.version == pyspark.__version__
    hub.embedded.create_hub("copies", 4)
    copies = Hub(hub.embedded, "copies")
    options = f"connectionString = '{hub.connection}'"
    rows = "SELECT cast(format_string('%04d', id) AS binary) AS body FROM range(30)"
    spark.sql(f"INSERT INTO {table} WITH ({options}) {rows}")
    assert bodies(spark.sql(f"SELECT * FROM {table} WITH ({options})")) == numbered(30)
    copy(spark, hub, copies, tmp_path)
    hub.send(*numbered(7, "later-"))
    copy(spark, hub, copies, tmp_path)
    assert bodies(read(spark, copies)) == sorted([*numbered(30), *numbered(7, "later-")])
