"""Opens the database that a URL names."""

from __future__ import annotations

from pumphouse.errors import OptionError
from pumphouse.homes.record.database import Database
from pumphouse.leases.store_url import parse_store_url


def open_database(url: str) -> Database:
    """Open sqlite:///PATH or PATH, or postgresql://USER:PASSWORD@HOST/NAME."""
    # The drivers are imported here, because psycopg is an optional package.
    if url.startswith(("postgresql:", "postgres:")):
        from pumphouse.homes.record.postgres import PostgresConnection

        return Database(PostgresConnection(url))
    from pumphouse.homes.record.sqlite import SqliteConnection

    try:
        location = parse_store_url(url)
    except OptionError:  # its text lists lease stores, which are not databases
        raise unsupported_database("") from None
    if location.kind != "sqlite":
        raise unsupported_database(f" {location.kind}:")
    return Database(SqliteConnection(location.path))


def unsupported_database(kind: str) -> OptionError:
    return OptionError(f"unsupported database{kind}: use sqlite:///PATH or postgresql://HOST/NAME")
