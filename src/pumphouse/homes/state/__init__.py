"""The state of the Spark stages, as bytes."""
