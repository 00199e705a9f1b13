"""The driver's side of a query: what the hub holds, and what the next batch reads."""
