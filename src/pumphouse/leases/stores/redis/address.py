"""The URL of a Redis store: parsed, and shown without its password.

"rediss://user:password@host:6380/2" -> parse_address -> Address -> "Redis database 2 at host:6380"
                                        ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pumphouse.errors import OptionError
from pumphouse.leases.stores.limits import printable

URL_FORM = "redis://USER:PASSWORD@HOST:PORT/DB, or rediss:// for TLS"
PORT = 6379
PORT_MAX = 65535
CA_FILE = "ca_file"


@dataclass(frozen=True, slots=True)
class Address:
    """A database of a Redis server, and how to log in."""

    host: str
    port: int = PORT
    database: int = 0
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""

    @property
    def name(self) -> str:
        """As errors and logs show it."""
        return f"Redis database {self.database} at {printable(self.host)}:{self.port}"


def parse_address(url: str) -> Address:
    """The address of a URL. An OptionError repeats no part of it that may be a secret."""
    parts, port = _split(url)
    if parts is None:
        # Raised here: the error of Python quotes a part of the URL, perhaps the password.
        raise _invalid(f"the port must be a number from 1 to {PORT_MAX}")
    if parts.scheme not in ("redis", "rediss"):
        raise _invalid("its scheme is neither redis nor rediss")
    if not parts.hostname or port == 0:
        raise _invalid("it has no host" if not parts.hostname else "port 0 cannot be used")
    return Address(
        parts.hostname,
        port or PORT,
        _database(parts.path),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.scheme == "rediss",
        _ca_file(parts),
    )


def _split(url: str) -> tuple[SplitResult | None, int | None]:
    """The parts of a URL and its port; None if they are invalid."""
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError:
        return None, None


def _database(path: str) -> int:
    text = path.strip("/")
    if re.fullmatch("[0-9]{0,9}", text):
        return int(text or 0)
    raise _invalid("the database after the slash must be a number")


def _ca_file(parts: SplitResult) -> str:
    """The file of the parameter `ca_file`, the only one. A `#` may be part of a password."""
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = parameters.pop(CA_FILE, "")
    if parameters or parts.fragment:
        raise _invalid(
            f"?{CA_FILE}=PATH is the only parameter; write # and ? of a password as %23 and %3F"
        )
    if path and parts.scheme == "redis":
        raise _invalid(f"{CA_FILE} needs rediss://")
    return path


def _invalid(problem: str) -> OptionError:
    return OptionError(f"invalid URL of a Redis store: {problem}; use {URL_FORM}")
