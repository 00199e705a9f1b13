"""A query that reads several hubs of a namespace."""
