"""Connection strings, parsed as by the official client."""

from __future__ import annotations

import pytest

from pumphouse.client.connection_string import ConnectionString, parse_connection_string
from pumphouse.errors import OptionError

KEYS = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0+/=="
LOCAL = f"Endpoint=sb://localhost:5800;{KEYS};UseDevelopmentEmulator=true"
CLOUD = f"Endpoint=sb://ns.servicebus.windows.net/;{KEYS};EntityPath=eh1"


def test_all_parts_are_parsed() -> None:
    assert parse_connection_string(f"{LOCAL};EntityPath=eh1") == ConnectionString(
        host="localhost",
        port=5800,
        authority="localhost:5800",
        hub="eh1",
        key_name="Root",
        key="c2VjcmV0+/==",
        tls=False,
    )


@pytest.mark.parametrize(
    ("text", "address", "tls"),
    [
        (CLOUD, "ns.servicebus.windows.net:5671", True),
        (LOCAL, "localhost:5800", False),
        (LOCAL.replace(":5800", ""), "localhost:5672", False),
        (LOCAL.replace(":5800", "/"), "localhost:5672", False),
        (LOCAL.replace("true", "True"), "localhost:5800", True),  # only exactly "true" counts
        (LOCAL.replace("localhost", "[::1]"), "::1:5800", False),
        (LOCAL.replace("Endpoint", "HostName"), "localhost:5800", False),
        (LOCAL.lower().replace("sharedaccesskey=", "SHAREDACCESSKEY="), "localhost:5800", False),
        (f"  {LOCAL};;  ", "localhost:5800", False),
    ],
)
def test_host_port_and_tls(text: str, address: str, tls: bool) -> None:
    parsed = parse_connection_string(text)
    assert (parsed.address, parsed.tls) == (address, tls)


@pytest.mark.parametrize("text", [CLOUD, LOCAL, LOCAL.upper().replace("TRUE", "true")])
def test_the_official_client_reads_the_same(text: str) -> None:
    sdk = pytest.importorskip("azure.eventhub._client_base")
    host, key_name, key, hub, signature, _, emulator = sdk._parse_conn_str(text)
    parsed = parse_connection_string(text)
    assert parsed.authority == host
    assert (parsed.key_name, parsed.key, parsed.hub or None) == (key_name, key, hub)
    assert (parsed.signature or None, parsed.tls) == (signature, not emulator)


def test_a_token_is_issued_for_the_address_as_written() -> None:
    assert parse_connection_string(CLOUD).resource("eh1") == "sb://ns.servicebus.windows.net/eh1"
    assert parse_connection_string(LOCAL).resource("") == "sb://localhost:5800/"


def test_a_signature_replaces_a_key() -> None:
    token = "SharedAccessSignature sr=sb%3A%2F%2Fh%2Feh&sig=abc%3D&se=1&skn=Root"
    assert (
        parse_connection_string(f"Endpoint=sb://h;SharedAccessSignature={token}").signature == token
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "part 1 is not of the form Name=Value"),
        ("nonsense", "part 1 is not of the form Name=Value"),
        (f"Endpoint=sb://h;{KEYS};oops", "part 4 is not of the form Name=Value"),
        (KEYS, "has no Endpoint"),
        (f"Endpoint=;{KEYS}", "Endpoint has no value"),
        (f"Endpoint=h;{KEYS}", "an invalid Endpoint"),
        (f"Endpoint=sb://h:port;{KEYS}", "an invalid Endpoint"),
        (f"Endpoint=sb://h;Endpoint=sb://i;{KEYS}", "Endpoint is given twice"),
        (f"Endpoint=sb://h;endpoint=sb://i;{KEYS}", "Endpoint is given twice"),
        ("Endpoint=sb://h", "has neither SharedAccessKey nor SharedAccessSignature"),
        ("Endpoint=sb://h;SharedAccessKeyName=Root", "and no SharedAccessKey"),
        ("Endpoint=sb://h;SharedAccessKey=c2VjcmV0", "and no SharedAccessKeyName"),
        ("Endpoint=sb://h;SharedAccessKeyName=Root;SharedAccessKey=", "Key has no value"),
    ],
)  # fmt: skip
def test_the_error_names_the_invalid_part_and_the_form(text: str, complaint: str) -> None:
    with pytest.raises(OptionError) as wrong:
        parse_connection_string(text)
    assert complaint in str(wrong.value)
    assert "expected Endpoint=sb://HOST" in str(wrong.value)
    assert "c2VjcmV0" not in str(wrong.value)


def test_repr_shows_no_key_or_signature() -> None:
    shown = repr(
        parse_connection_string(f"{LOCAL};SharedAccessSignature=SharedAccessSignature sig=hush")
    )
    assert "c2VjcmV0" not in shown
    assert "hush" not in shown
    assert "Root" in shown
