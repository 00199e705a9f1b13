"""What a connection string says: where the hub is, which one, and what opens it.

It is read as the official clients read it: keys in any case, `UseDevelopmentEmulator` only if it
is exactly "true". Errors name the part that is missing or odd, never what stands in it, because
any part may hold a key.

    "Endpoint=sb://...;..." -> parse -> ConnectionString -> routes.py, credentials.py
                               ^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from pumphouse.errors import OptionError

PLAIN_PORT, TLS_PORT = 5672, 5671

NAMES = (
    "Endpoint",
    "HostName",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
)
KNOWN = {name.lower(): name for name in NAMES}
FORM = "Endpoint=sb://HOST[:PORT];SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=HUB]"


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A connection string in parts. Without key and signature a credential must come with it."""

    host: str
    port: int
    authority: str  # host and port as they were written; tokens are made out to it
    hub: str = ""  # "" is the namespace: all hubs behind the address
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)  # a token made by someone else
    tls: bool = True

    @property
    def place(self) -> str:
        """Where it leads, for people."""
        return f"{self.host}:{self.port}"

    def resource(self, path: str) -> str:
        """A path behind this address, as tokens write it."""
        return f"sb://{self.authority}/{path}"


def read_connection_string(
    text: str | ConnectionString, hub: str = "", *, keyless: bool = False
) -> ConnectionString:
    """A connection string, or just the host of a namespace, and the hub that is meant.

    With `keyless` it need not hold a key, because a credential is given besides it.
    """
    if isinstance(text, str):
        named = "=" in text or ";" in text
        text = (
            parse_connection_string(text, keyless=keyless) if named else parse_host(text, keyless)
        )
    if not keyless and not text.key and not text.signature:
        raise wrong("has neither SharedAccessKey nor SharedAccessSignature")
    return replace(text, hub=hub) if hub else text


def parse_host(text: str, keyless: bool) -> ConnectionString:
    """A bare host: TLS, and nothing that opens it."""
    written = text.strip()
    if not keyless:
        raise OptionError(
            f"{written!r:.80} is no connection string; expected {FORM}. "
            "The host of a namespace alone is enough if a credential is given with it"
        )
    scheme = "" if "://" in written else "sb://"
    host, port, authority = read_endpoint(f"{scheme}{written}")
    return ConnectionString(host, port or TLS_PORT, authority)


def parse_connection_string(text: str, *, keyless: bool = False) -> ConnectionString:
    """Read a connection string; OptionError if something is missing or odd."""
    parts = split(text)
    endpoint = parts.get("endpoint") or parts.get("hostname")
    if endpoint is None:
        raise wrong("has no Endpoint")
    key_name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
    signature = parts.get("sharedaccesssignature", "")
    if not keyless:
        check_credentials(key_name, key, signature)
    tls = parts.get("usedevelopmentemulator") != "true"
    host, port, authority = read_endpoint(endpoint)
    return ConnectionString(
        host,
        port or (TLS_PORT if tls else PLAIN_PORT),
        authority,
        parts.get("entitypath", ""),
        key_name,
        key,
        signature,
        tls,
    )


def split(text: str) -> dict[str, str]:
    """The parts by their names in lower case."""
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().rstrip(";").split(";"), 1):
        written, equals, value = part.partition("=")
        name = written.strip().lower()
        called = KNOWN.get(name, f"part {number}")
        if not name or not equals:
            raise wrong(f"is malformed: part {number} is not of the form Name=Value")
        if not value.strip():
            raise wrong(f"is malformed: {called} has no value")
        if name in parts:
            raise wrong(f"is malformed: {called} is given twice")
        parts[name] = value.strip()
    return parts


def check_credentials(key_name: str, key: str, signature: str) -> None:
    if signature:
        return
    if not key and not key_name:
        raise wrong("has neither SharedAccessKey nor SharedAccessSignature")
    if not key:
        raise wrong("has a SharedAccessKeyName and no SharedAccessKey")
    if not key_name:
        raise wrong("has a SharedAccessKey and no SharedAccessKeyName")


def read_endpoint(endpoint: str) -> tuple[str, int | None, str]:
    """Host, port if one is named, and both as they were written."""
    try:
        address = urlsplit(endpoint.rstrip("/"))
        host, port = address.hostname, address.port
    except ValueError:
        host = port = None
    if not host:
        raise wrong("has an Endpoint that is no address")
    return host, port, address.netloc.rpartition("@")[2]


def wrong(what: str) -> OptionError:
    return OptionError(f"the connection string {what}; expected {FORM}")
