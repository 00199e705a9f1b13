"""A store in a PostgreSQL database, for hosts on many machines."""
