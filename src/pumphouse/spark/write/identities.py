"""What the sink writes beside a row, so that a reader knows whether it has seen it before."""

QUERY, BATCH, TASK, ROW = "spark-query-id", "spark-batch-id", "spark-partition-id", "spark-row"
