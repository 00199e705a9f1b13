"""What a Spark task does to read events, and the columns of the source."""
