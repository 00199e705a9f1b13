"""What each version of Spark 4 offers to a source and a sink, known only to this package."""
