"""The tables of a lease database, and their statements.

The tables are in a schema of their own. It is created at the first use; an administrator may create
it before, with `creation()`, so that hosts need no right to create anything.

    PostgresStore -> Statements -> PostgreSQL
                     ^^^^^^^^^^ this module

Every time is read from the clock of the database. A write that matters to another host (a request,
a hand-over, a claim, a release, a resume) notifies the hosts of the group when it commits.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pumphouse.errors import OptionError
from pumphouse.leases.model import Group
from pumphouse.leases.stores.limits import NAME_CHARS_MAX, OFFSET_CHARS_MAX, ROWS_MAX

VERSION = 1
SCHEMA = "pumphouse"
CLOCK = "clock_timestamp()"
# Names of PostgreSQL have at most 63 bytes. These are valid without quotes.
_NAME = re.compile("[a-z_][a-z0-9_]{0,39}")
MEMBER_KEPT_S = 24 * 3600  # a host without a beat for this long is gone

# Names and owners are compared byte by byte, whatever the locale of the database.
_TEXT = 'text COLLATE "C" NOT NULL'
_GROUP = f"namespace {_TEXT}, hub {_TEXT}, consumer_group {_TEXT}"
_KEY = "namespace, hub, consumer_group"
# A renewal rewrites its row: with room in each page it needs no new page and no index entry.
_ROOM = "WITH (fillfactor = 50)"

_CREATION = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.ownership (
    {group}, partition_id {text},
    owner text NOT NULL, epoch bigint NOT NULL, etag text NOT NULL,
    successor text NOT NULL, deadline_at timestamptz, rate double precision,
    pinned boolean NOT NULL, state text NOT NULL, written_at timestamptz NOT NULL,
    PRIMARY KEY ({key}, partition_id)
) {room};
CREATE TABLE IF NOT EXISTS {schema}.checkpoint (
    {group}, partition_id {text},
    sequence bigint, event_offset text, enqueued_ms bigint,
    epoch bigint NOT NULL, etag text NOT NULL,
    PRIMARY KEY ({key}, partition_id)
) {room};
CREATE TABLE IF NOT EXISTS {schema}.member (
    {group}, name {text}, max_partitions integer, written_at timestamptz NOT NULL,
    PRIMARY KEY ({key}, name)
) {room};
CREATE TABLE IF NOT EXISTS {schema}.store_version (version integer PRIMARY KEY);
INSERT INTO {schema}.store_version VALUES ({version}) ON CONFLICT DO NOTHING
"""

_IN_GROUP = "namespace = %(namespace)s AND hub = %(hub)s AND consumer_group = %(group)s"
_GROUP_VALUES = "%(namespace)s, %(hub)s, %(group)s"
_ROW_VALUES = {
    "owner": "%(owner)s",
    "epoch": "%(epoch)s",
    "etag": "%(etag)s",
    "successor": "%(successor)s",
    "deadline_at": "{clock} + %(deadline_s)s::double precision * interval '1 second'",
    "rate": "%(rate)s::double precision",
    "pinned": "%(pinned)s",
    "state": "%(state)s",
    "written_at": "{clock}",
}
_CHECKPOINT_VALUES = {
    "sequence": "%(sequence)s::bigint",
    "event_offset": "%(offset)s::text",
    "enqueued_ms": "%(enqueued_ms)s::bigint",
    "epoch": "%(epoch)s",
    "etag": "%(etag)s",
}
# A value of its own that every transaction of a handler sets. It is gone with the transaction.
MARK = "pumphouse.transaction"
_CURRENT_MARK = f"current_setting('{MARK}', true)"
_IN_TRANSACTION = f"(%(mark)s::text IS NULL OR {_CURRENT_MARK} = %(mark)s::text)"
# A checkpoint neither goes back nor falls to an earlier epoch, except by an administrator.
_FORWARD = """(%(rewind)s OR (epoch <= %(epoch)s AND
    (sequence IS NULL OR coalesce(sequence <= %(sequence)s::bigint, false))))"""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a store whose tables are in `schema`, with the time of `clock`."""

    schema: str = SCHEMA
    clock: str = CLOCK

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.schema):
            raise OptionError(
                f"schema must be a lower-case name of at most 40 letters, digits and underscores "
                f"(got {self.schema!r})"
            )

    def creation(self) -> list[str]:
        """The statements that create what is missing."""
        text = _CREATION.format(
            schema=self.schema, group=_GROUP, text=_TEXT, key=_KEY, room=_ROOM, version=VERSION
        )
        return [statement.strip() for statement in text.split(";")]

    def channel(self, group: Group) -> str:
        """The channel on which the hosts of a group are notified."""
        key = "\0".join((self.schema, *group_key(group)))
        return f"pumphouse_{hashlib.sha256(key.encode()).hexdigest()[:40]}"

    @property
    def version(self) -> str:
        return f"SELECT max(version) FROM {self.schema}.store_version"

    # -- reading ----------------------------------------------------------------------------------

    @property
    def rows(self) -> str:
        return self._select("ownership", self._row_columns)

    @property
    def rows_of(self) -> str:
        """The rows of some partitions."""
        return f"{self._select('ownership', self._row_columns)} AND partition_id = ANY(%(some)s)"

    @property
    def members(self) -> str:
        return self._select("member", f"name, {self._age}, max_partitions")

    @property
    def epochs(self) -> str:
        return self._select("checkpoint", "partition_id, epoch")

    @property
    def checkpoints(self) -> str:
        offset, etag = beginning("event_offset", OFFSET_CHARS_MAX), beginning("etag")
        columns = f"partition_id, sequence, {offset}, epoch, {etag}, enqueued_ms"
        return self._select("checkpoint", columns)

    @property
    def checkpoint_of(self) -> str:
        return f"{self.checkpoints} AND partition_id = %(partition)s"

    @property
    def groups(self) -> str:
        """The names of all groups of a hub."""
        names = " UNION ".join(
            f"SELECT consumer_group FROM {self.schema}.{table} "
            "WHERE namespace = %(namespace)s AND hub = %(hub)s"
            for table in ("ownership", "checkpoint")
        )
        return f"SELECT consumer_group FROM ({names}) AS named"

    def _select(self, table: str, columns: str) -> str:
        return f"SELECT {columns} FROM {self.schema}.{table} WHERE {_IN_GROUP}"

    @property
    def _age(self) -> str:
        return self._seconds(self.clock, "written_at")

    @property
    def _row_columns(self) -> str:
        owner, etag, successor, state = map(beginning, ("owner", "etag", "successor", "state"))
        left = self._seconds("deadline_at", self.clock)
        return (
            f"partition_id, {owner}, epoch, {etag}, {self._age}, {successor}, {left}, rate, "
            f"pinned, {state}"
        )

    def _seconds(self, end: str, begin: str) -> str:
        """The seconds from one time to another, also if one is infinite."""
        # float8: numbers of PostgreSQL's own type numeric would become decimals.
        return (
            f"(extract(epoch FROM {end})::double precision "
            f"- extract(epoch FROM {begin})::double precision)"
        )

    # -- writing ----------------------------------------------------------------------------------

    @property
    def first_row(self) -> str:
        return self._insert("ownership", _ROW_VALUES)

    @property
    def next_row(self) -> str:
        """Replace the row that has the given etag, and notify the hosts that this concerns."""
        table, values = f"{self.schema}.ownership", self._values(_ROW_VALUES)
        of_row = f"{_IN_GROUP} AND partition_id = %(partition)s AND etag = %(before)s"
        changed = " OR ".join(
            f"former.{name} <> row.{name}" for name in ("owner", "successor", "state")
        )
        return f"""
WITH former AS MATERIALIZED (SELECT owner, successor, state FROM {table} WHERE {of_row} FOR UPDATE),
written AS (
    UPDATE {table} AS row SET {values} FROM former WHERE {of_row.replace("etag", "row.etag")}
    RETURNING row.etag, {changed} AS changed, former.owner AS former_owner
)
SELECT etag, CASE WHEN changed THEN pg_notify(%(channel)s, left(json_build_array(
    %(partition)s::text, former_owner, %(owner)s::text, %(successor)s::text)::text, 7900)) END
FROM written"""

    @property
    def first_checkpoint(self) -> str:
        return self._insert("checkpoint", _CHECKPOINT_VALUES, _IN_TRANSACTION)

    @property
    def next_checkpoint(self) -> str:
        values = self._values(_CHECKPOINT_VALUES)
        return f"""
UPDATE {self.schema}.checkpoint SET {values}
WHERE {_IN_GROUP} AND partition_id = %(partition)s AND etag = %(before)s AND {_FORWARD}
AND {_IN_TRANSACTION}
RETURNING etag"""

    @property
    def mark(self) -> str:
        """The mark of the current transaction."""
        return f"SELECT {_CURRENT_MARK}"

    def _insert(self, table: str, values: dict[str, str], condition: str = "true") -> str:
        columns = ", ".join(values)
        return (
            f"INSERT INTO {self.schema}.{table} ({_KEY}, partition_id, {columns}) "
            f"SELECT {_GROUP_VALUES}, %(partition)s, "
            f"{', '.join(values.values()).format(clock=self.clock)} WHERE {condition} "
            "ON CONFLICT DO NOTHING RETURNING etag"
        )

    def _values(self, values: dict[str, str]) -> str:
        pairs = (f"{column} = {value}" for column, value in values.items())
        return ", ".join(pairs).format(clock=self.clock)

    @property
    def beat(self) -> str:
        """Write a member record, and remove those of hosts that are gone."""
        table = f"{self.schema}.member"
        return f"""
WITH gone AS (
    DELETE FROM {table} WHERE {_IN_GROUP} AND name <> %(name)s
    AND written_at < {self.clock} - {MEMBER_KEPT_S} * interval '1 second'
)
INSERT INTO {table} ({_KEY}, name, max_partitions, written_at)
VALUES ({_GROUP_VALUES}, %(name)s, %(max_partitions)s::integer, {self.clock})
ON CONFLICT ({_KEY}, name) DO UPDATE
SET max_partitions = excluded.max_partitions, written_at = excluded.written_at"""

    @property
    def leave(self) -> str:
        return f"DELETE FROM {self.schema}.member WHERE {_IN_GROUP} AND name = %(name)s"


def beginning(column: str, chars_max: int = NAME_CHARS_MAX) -> str:
    """The text of a column, cut one character after its limit: enough to refuse it unloaded."""
    return f"left({column}, {chars_max + 1})"


def group_key(group: Group) -> tuple[str, str, str]:
    """The stored names of a group: their case does not matter."""
    return group.namespace.lower(), group.hub.lower(), group.name.lower()


def group_values(group: Group) -> dict[str, object]:
    namespace, hub, name = group_key(group)
    return {"namespace": namespace, "hub": hub, "group": name, "limit": ROWS_MAX + 1}
