"""Queries on a local Spark: data frames of a hub, and streams into files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from benchmarks._spark_start import start_query
from tests.spark.conftest import Hub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ENDED_S = 120


def read(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection} | options
    return spark.read.format("eventhubs").options(**given).load()


def stream(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection} | options
    return spark.readStream.format("eventhubs").options(**given).load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(body as string)").collect())


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:04d}" for number in range(count)]


def secret_key(hub: Hub) -> str:
    return hub.connection.split("SharedAccessKey=")[1].split(";")[0]


def committed_files(folder: Path) -> set[Path]:
    """The files that Spark's log of a file sink names."""
    log = folder / "rows" / "_spark_metadata"
    return {
        Path(unquote(urlsplit(json.loads(entry)["path"]).path))
        for path in (log.glob("[0-9]*") if log.exists() else ())
        for entry in path.read_text().splitlines()[1:]
    }


class FileSink:
    """A stream into files, and the rows that it has written."""

    def __init__(self, frame: DataFrame, folder: Path, **trigger: Any) -> None:
        self.folder = folder
        writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        chosen = trigger or {"processingTime": "0 seconds"}
        self.query: StreamingQuery = start_query(writer.trigger(**chosen).start)

    def bodies(self) -> list[str]:
        """The bodies of the committed rows, read without a Spark job."""
        tables = [pq.read_table(path, columns=["body"]) for path in committed_files(self.folder)]
        values = [value for table in tables for value in table.column("body").to_pylist()]
        return sorted(value.decode() for value in values)

    def drain(self) -> list[str]:
        """Everything up to the newest event of the hub."""
        self.query.processAllAvailable()
        return self.bodies()

    def end(self) -> list[str]:
        """Everything, after the query has ended by itself."""
        assert self.query.awaitTermination(ENDED_S)
        return self.bodies()
