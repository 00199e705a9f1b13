"""Hub -> Delta table, each event once: the table knows the last batch that it has."""

import tempfile
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pumphouse import EmbeddedHub
from pumphouse.spark import session

with EmbeddedHub(hubs={"sensors": 2}) as hub, tempfile.TemporaryDirectory() as folder:
    spark = session("delta lake", "local[2]", {"spark.log.level": "OFF"})
    sensors = {"connectionString": hub.connection_string("sensors")}
    rows = spark.range(100).selectExpr("cast(id as string) as body")
    rows.write.format("eventhubs").mode("append").options(**sensors).save()
    table = f"{folder}/readings"  # or s3://, abfss://, with storage_options

    def last_batch():
        """The number of the last batch in the table."""
        is_new = not DeltaTable.is_deltatable(table)
        return None if is_new else DeltaTable(table).transaction_version("copy")

    def append(frame, batch):
        """Append a batch and its number in one transaction. Spark may repeat the last one."""
        last = last_batch()
        if last is None or last < batch:
            number = CommitProperties(app_transactions=[Transaction("copy", batch)])
            # All rows pass through the driver: maxEventsPerTrigger limits them.
            write_deltalake(table, frame.toArrow(), mode="append", commit_properties=number)

    def copy():
        events = spark.readStream.format("eventhubs").options(**sensors)
        limited = events.options(startingPosition="earliest", maxEventsPerTrigger="40").load()
        texts = limited.selectExpr("cast(body as string) as text", "partition", "sequenceNumber")
        writer = texts.writeStream.foreachBatch(append).trigger(availableNow=True)
        writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()

    copy()
    # As after a crash between the write and Spark's commit: Spark repeats the last batch.
    for name in (str(last_batch()), f".{last_batch()}.crc"):
        Path(f"{folder}/checkpoint/commits/{name}").unlink()
    copy()
    print(len(DeltaTable(table).to_pyarrow_table()), "rows, last batch", last_batch())
