"""Parses connection strings.

The rules are those of the official clients: keys in any case, `UseDevelopmentEmulator` only if it
is exactly "true". Errors name the missing or invalid part but never its value, which may be a key.

    "Endpoint=sb://...;..." -> parse_connection_string -> ConnectionString -> routes.py
                               ^^^^^^^^^^^^^^^^^^^^^^^ this module
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
NAME_BY_KEY = {name.lower(): name for name in NAMES}
FORM = "Endpoint=sb://HOST[:PORT];SharedAccessKeyName=NAME;SharedAccessKey=KEY[;EntityPath=HUB]"


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed connection string. Without key and signature it needs a credential."""

    host: str
    port: int
    authority: str  # host and port as written; tokens are issued for it
    hub: str = ""  # "" stands for the namespace
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)  # a token that was signed elsewhere
    tls: bool = True

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    def resource(self, path: str) -> str:
        """The URI of a path, as tokens contain it."""
        return f"sb://{self.authority}/{path}"


def read_connection_string(
    text: str | ConnectionString, hub: str = "", *, keyless: bool = False
) -> ConnectionString:
    """Parse a connection string or the host of a namespace; `hub` replaces its EntityPath.

    With `keyless` no key is needed, because the caller has a credential.
    """
    if isinstance(text, ConnectionString):
        parsed = text
    elif "=" in text or ";" in text:
        parsed = parse_connection_string(text, keyless=keyless)
    else:
        parsed = parse_host(text, keyless)
    if not keyless and not parsed.key and not parsed.signature:
        raise invalid("has neither SharedAccessKey nor SharedAccessSignature")
    return replace(parsed, hub=hub) if hub else parsed


def parse_host(text: str, keyless: bool) -> ConnectionString:
    """Parse the host of a namespace. It needs a credential, and TLS is used."""
    host_text = text.strip()
    if not keyless:
        raise OptionError(
            f"invalid connection string {host_text!r:.80}: expected {FORM}; "
            "a host alone needs a credential"
        )
    scheme = "" if "://" in host_text else "sb://"
    host, port, authority = read_endpoint(f"{scheme}{host_text}")
    return ConnectionString(host, port or TLS_PORT, authority)


def parse_connection_string(text: str, *, keyless: bool = False) -> ConnectionString:
    """Parse a connection string; OptionError if a part is missing or invalid."""
    parts = split_parts(text)
    endpoint = parts.get("endpoint") or parts.get("hostname")
    if endpoint is None:
        raise invalid("has no Endpoint")
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


def split_parts(text: str) -> dict[str, str]:
    """The parts by their names in lower case."""
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().rstrip(";").split(";"), 1):
        key, equals, value = part.partition("=")
        name = key.strip().lower()
        label = NAME_BY_KEY.get(name, f"part {number}")
        if not name or not equals:
            raise invalid(f"is malformed: part {number} is not of the form Name=Value")
        if not value.strip():
            raise invalid(f"is malformed: {label} has no value")
        if name in parts:
            raise invalid(f"is malformed: {label} is given twice")
        parts[name] = value.strip()
    return parts


def check_credentials(key_name: str, key: str, signature: str) -> None:
    if signature:
        return
    if not key and not key_name:
        raise invalid("has neither SharedAccessKey nor SharedAccessSignature")
    if not key:
        raise invalid("has a SharedAccessKeyName and no SharedAccessKey")
    if not key_name:
        raise invalid("has a SharedAccessKey and no SharedAccessKeyName")


def read_endpoint(endpoint: str) -> tuple[str, int | None, str]:
    """The host, the port if there is one, and the authority (host and port as written)."""
    try:
        address = urlsplit(endpoint.rstrip("/"))
        host, port = address.hostname, address.port
    except ValueError:
        host = port = None
    if not host:
        raise invalid("has an invalid Endpoint")
    return host, port, address.netloc.rpartition("@")[2]


def invalid(problem: str) -> OptionError:
    return OptionError(f"the connection string {problem}; expected {FORM}")


def hub_missing() -> OptionError:
    return OptionError(
        "no hub is named: pass its name, or add EntityPath=HUB to the connection string"
    )
