"""Errors of PostgreSQL as errors of a store, without the secrets of the URL.

psycopg.Error -> store_error -> StoreUnavailable | StoreError | OptionError
                 ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pumphouse.errors import OptionError, PumphouseError, StoreError, StoreUnavailable
from pumphouse.leases.stores.limits import printable

URL_FORM = "postgres://USER:PASSWORD@HOST:PORT/DATABASE"
# Classes and codes of SQLSTATE after which a later call may succeed.
TRANSIENT = (
    "08",  # connection lost
    "25006",  # a read-only server: another server is now the primary
    "40",  # deadlock, or a conflict of transactions
    "53",  # too many connections, out of memory or disk
    "55P03",  # a lock was not available in time
    "57",  # cancelled by a deadline, or the server shuts down or starts
    "58",  # input and output errors of the server
)
# Refusals that a retry cannot change. Other texts, and texts in other languages, are retried.
_PERMANENT = re.compile(
    "password authentication failed|does not exist|no pg_hba.conf entry|permission denied"
    "|no password supplied|certificate verify failed"
)
_LENGTH_MAX = 300
PORT_MAX = 65535


def store_error(where: str, error: Exception) -> PumphouseError:
    """The error to raise: StoreUnavailable if a later call may succeed."""
    state = getattr(error, "sqlstate", None)
    reason = f"{where}: {first_line(error)}"
    if isinstance(error, psycopg.DataError | UnicodeError):
        return OptionError(f"a row cannot be stored in {reason}")
    if state is None:
        permanent = not isinstance(error, psycopg.OperationalError) or _is_permanent(error)
        return StoreError(reason) if permanent else StoreUnavailable(reason)
    if state.startswith(TRANSIENT):
        return StoreUnavailable(reason)
    if state == "42501":
        return StoreError(f"{reason}; grant the user USAGE on the schema, and SELECT, INSERT, "
                          "UPDATE and DELETE on its tables")  # fmt: skip
    if state in ("42P01", "3F000", "42703"):
        return StoreError(f"{reason}; its tables were removed or changed: restart every host")
    return StoreError(reason)


def is_transient(error: psycopg.Error) -> bool:
    """Whether the same statements may succeed later."""
    return (error.sqlstate or "").startswith(TRANSIENT)


def _is_permanent(error: Exception) -> bool:
    # If only the socket does not exist, the server is not running: it may be started.
    text = str(error)
    return bool(_PERMANENT.search(text)) and "FATAL" in text


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0][:_LENGTH_MAX])


def database_name(url: str) -> str:
    """The database of a URL as errors show it: without user, password and settings."""
    try:
        values = conninfo_to_dict(url)
    except psycopg.Error:
        # The error quotes a part of the URL, perhaps the password.
        raise OptionError(f"invalid URL of a PostgreSQL store: use {URL_FORM}") from None
    if not all(map(is_port, str(values.get("port") or "").split(","))):
        raise OptionError(
            f"invalid port in the URL of a PostgreSQL store: it must be a number from 1 to "
            f"{PORT_MAX}; use {URL_FORM}"
        )
    host = printable(unquote(str(values.get("host") or values.get("hostaddr") or "local socket")))
    port = f":{values['port']}" if values.get("port") else ""
    name = printable(str(values.get("dbname") or values.get("user") or "(default)"))
    return f"PostgreSQL database {name} at {host}{port}"


def is_port(text: str) -> bool:
    """Whether this is a port, or empty for the default one."""
    return not text or (re.fullmatch("[0-9]{1,5}", text) is not None and 1 <= int(text) <= PORT_MAX)
