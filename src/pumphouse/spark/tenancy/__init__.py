"""A query that shares its consumer group with other hosts."""
