"""Opens the database that a URL names."""

from __future__ import annotations

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record.connections import connect
from pumphouse.homes.record.database import Database


def open_database(url: str, kinds: Kinds = DEFAULT) -> Database:
    """Open sqlite:///PATH or PATH, or postgresql://USER:PASSWORD@HOST/NAME."""
    return Database(connect(url), kinds)
