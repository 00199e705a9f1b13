"""What a Spark task does to write events."""
