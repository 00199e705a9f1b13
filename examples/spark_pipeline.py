"""Hub -> Spark -> hub, exactly once: a stream names its rows, and readers drop repeats."""

import tempfile

from pumphouse import EmbeddedHub
from pumphouse.spark import drop_repeats, session

with EmbeddedHub(hubs={"sensors": 4, "alerts": 2}) as hub, tempfile.TemporaryDirectory() as folder:
    spark = session("example", "local[2]", {"spark.log.level": "OFF"})
    sensors = {"connectionString": hub.connection_string("sensors")}
    alerts = {"connectionString": hub.connection_string("alerts")}

    rows = spark.range(100).selectExpr("cast(id as string) as body", "'home-7' as partitionKey")
    rows.write.format("eventhubs").mode("append").options(**sensors).save()

    readings = spark.readStream.format("eventhubs").options(**sensors, startingPosition="earliest")
    hot = readings.load().where("cast(cast(body as string) as int) >= 90").select("body")
    writer = hot.writeStream.format("eventhubs").options(**alerts)
    query = writer.trigger(availableNow=True).option("checkpointLocation", folder).start()
    query.awaitTermination()

    alerts_once = drop_repeats(spark.read.format("eventhubs").options(**alerts).load())
    print(sorted(row[0] for row in alerts_once.selectExpr("cast(body as string)").collect()))
    spark.stop()
