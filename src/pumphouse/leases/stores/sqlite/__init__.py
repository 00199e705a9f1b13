"""A store in one SQLite file, for many processes on one machine."""
