"""A query that shares its consumer group with other hosts. See docs/internals/tenancy.md."""
