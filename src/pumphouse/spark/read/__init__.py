"""What a Spark task does to read events."""
