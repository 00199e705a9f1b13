"""Keep state for each home: report a home whose temperature has risen by five degrees or more."""

import tempfile
from collections.abc import Iterator

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from pumphouse import EmbeddedHub
from pumphouse.spark import session

DEGREES = {"home-1": [20, 21, 20], "home-2": [19, 20, 25, 26], "home-3": [30]}


class Rises(StatefulProcessor):
    """The state is the lowest temperature since the last report."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.lowest = handle.getValueState("lowest", "degrees double")

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timers: object
    ) -> Iterator[Row]:
        lowest = self.lowest.get()[0] if self.lowest.exists() else float("inf")
        for row in sorted(rows, key=lambda row: row.sequenceNumber):
            if row.degrees >= lowest + 5:
                yield Row(home=key[0], rise=row.degrees - lowest)
                lowest = row.degrees
            lowest = min(lowest, row.degrees)
        self.lowest.update((lowest,))


with EmbeddedHub(hubs={"sensors": 2}) as hub, tempfile.TemporaryDirectory() as folder:
    spark = session("stateful processing", "local[2]", {"spark.log.level": "OFF"})
    sensors = {"connectionString": hub.connection_string("sensors")}
    rows = [(str(value), home) for home, values in DEGREES.items() for value in values]
    frame = spark.createDataFrame(rows, "body string, partitionKey string").coalesce(1)
    frame.write.format("eventhubs").mode("append").options(**sensors).save()

    readings = spark.readStream.format("eventhubs").options(**sensors, startingPosition="earliest")
    degrees = (
        readings.option("maxEventsPerTrigger", 4)
        .load()
        .selectExpr(
            "partitionKey as home",
            "sequenceNumber",
            "cast(cast(body as string) as double) as degrees",
        )
    )
    rises = degrees.groupBy("home").transformWithState(
        Rises(), outputStructType="home string, rise double", outputMode="Append", timeMode="None"
    )
    writer = rises.writeStream.format("parquet").option("path", f"{folder}/rises")
    query = writer.option("checkpointLocation", f"{folder}/log").trigger(availableNow=True).start()
    query.awaitTermination()
    print([tuple(row) for row in spark.read.parquet(f"{folder}/rises").collect()])
