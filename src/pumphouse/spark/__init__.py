"""`format("eventhubs")`: a source and a sink for PySpark, without a jar."""
