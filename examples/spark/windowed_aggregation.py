"""Count the events of each home in windows of a minute; late events are counted too."""

import json
import tempfile

from pyspark.sql.functions import window

from pumphouse import EmbeddedHub
from pumphouse.spark import session

READINGS = [  # home, time: the reading of 09:00:50 arrives late
    ("home-1", "2026-11-15T09:00:10Z"),
    ("home-2", "2026-11-15T09:00:20Z"),
    ("home-1", "2026-11-15T09:01:05Z"),
    ("home-1", "2026-11-15T09:00:50Z"),
    ("home-2", "2026-11-15T09:10:00Z"),
]

with EmbeddedHub(hubs={"sensors": 2}) as hub, tempfile.TemporaryDirectory() as folder:
    spark = session("windowed aggregation", "local[2]", {"spark.log.level": "OFF"})
    sensors = {"connectionString": hub.connection_string("sensors")}
    bodies = [(json.dumps({"home": home, "at": at}),) for home, at in READINGS]
    rows = spark.createDataFrame(bodies, "body string")
    rows.write.format("eventhubs").mode("append").options(**sensors).save()

    events = spark.readStream.format("eventhubs").options(**sensors, startingPosition="earliest")
    readings = events.load().selectExpr(
        "from_json(cast(body as string), 'home string, at timestamp') as reading"
    )
    counts = (
        readings.select("reading.*")
        .withWatermark("at", "2 minutes")  # a window is complete two minutes after its end
        .groupBy("home", window("at", "1 minute"))
        .count()
        .selectExpr("home", "date_format(window.start, 'HH:mm') as minute", "count")
    )
    query = (
        counts.writeStream.format("parquet")
        .option("path", f"{folder}/counts")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for row in spark.read.parquet(f"{folder}/counts").orderBy("home", "minute").collect():
        print(row.home, row.minute, row["count"])
