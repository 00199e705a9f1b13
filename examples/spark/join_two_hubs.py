"""Join two hubs: openings of a door without motion in the same home within ten seconds before."""

import tempfile

from pyspark.sql.functions import expr

from pumphouse import EmbeddedHub
from pumphouse.spark import session

DOORS = [
    "home-1 2026-11-15T09:00:10Z",
    "home-2 2026-11-15T09:00:20Z",
    "home-9 2026-11-15T10:00:00Z",
]
MOTIONS = ["home-1 2026-11-15T09:00:05Z", "home-9 2026-11-15T10:00:00Z"]

with EmbeddedHub(hubs={"doors": 2, "motions": 2}) as hub, tempfile.TemporaryDirectory() as folder:
    spark = session("join two hubs", "local[2]", {"spark.log.level": "OFF"})

    def options(name):
        return {"connectionString": hub.connection_string(), "name": name}

    def stream(name):
        """Home and time of the events of a hub; they arrive at most a minute late."""
        events = spark.readStream.format("eventhubs").options(**options(name))
        words = events.option("startingPosition", "earliest").load()
        fields = words.selectExpr("split(cast(body as string), ' ') as field")
        parsed = fields.selectExpr("field[0] as home", f"cast(field[1] as timestamp) as {name}_at")
        return parsed.withWatermark(f"{name}_at", "1 minute")

    for name, bodies in (("doors", DOORS), ("motions", MOTIONS)):
        rows = spark.createDataFrame([(body,) for body in bodies], "body string")
        rows.write.format("eventhubs").mode("append").options(**options(name)).save()

    doors, motions = stream("doors").alias("d"), stream("motions").alias("m")
    near = "d.home = m.home AND motions_at BETWEEN doors_at - INTERVAL 10 SECONDS AND doors_at"
    joined = doors.join(motions, on=expr(near), how="leftOuter")
    query = (
        joined.where("m.home IS NULL")
        .selectExpr("d.home as home", "doors_at")
        .writeStream.format("parquet")
        .option("path", f"{folder}/openings")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print([row.home for row in spark.read.parquet(f"{folder}/openings").collect()])
