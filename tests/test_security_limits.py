"""docs/security.md: the limits that it states are those of the code.

What happens beyond a limit is tested where the limit is (tests/hub, tests/client, …).
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
LIMITS = PAGE.partition("\n## Limits\n")[2]
# The first column -> the second one.
ROWS: dict[str, str] = dict(re.findall(r"^\| (.+?) \| (.+?) \| .+ \|$", LIMITS, re.MULTILINE))

# The beginning of a row, and the constants or defaults whose values it states.
STATED = """
connections of the hub|hub.options:ServerOptions.connections_max
connections of one remote address|hub.options:ServerOptions.connections_per_address_max
time from the accept|hub.options:ServerOptions.handshake_s s
TLS handshake|hub.listeners.listeners:HANDSHAKE_S s|hub.listeners.websocket:HANDSHAKE_S s
bytes held for a connection before|hub.options:ServerOptions.anonymous_bytes_max B
bytes held for a connection after|amqp.connection:Limits.held_bytes_max B|amqp.session:LINK_BYTES B
bytes sent to a client|hub.links.consumer:SLICE_BYTES B
bytes held for all|hub.options:ServerOptions.total_bytes_max B
links and sessions|amqp.connection:Limits.links_max|amqp.connection:Limits.channel_max
replies of `$cbs`|hub.links.requests:REPLIES_MAX
deliveries of a producer|hub.links.producer:SENDER_CREDIT|hub.links.producer:CREDIT_TOLERANCE
bytes that wait for the disk|hub.options:QUEUE_BYTES_MAX B
tokens of a connection|hub.access.guard:GRANTS_MAX|hub.limits.lengths:TEXT_CHARS_MAX
one WebSocket frame|hub.listeners.websocket:ANONYMOUS_FRAME_BYTES_MAX B
one WebSocket frame|hub.listeners.websocket:HANDSHAKE_BYTES_MAX B
log lines about clients|hub.server:LINES_PER_MINUTE|hub.server:AUTHENTICATED_LINES_PER_MINUTE
log lines about clients|dashboard.server.client_log:LINES_MAX
address of a link|hub.limits.lengths:TEXT_CHARS_MAX
name or text of a property|hub.limits.lengths:TEXT_CHARS_MAX
token|hub.access.auth:SAS_CHARS_MAX|hub.limits.lengths:TEXT_CHARS_MAX
name of a link|amqp.session:NAME_CHARS_MAX
`idle-time-out`|hub.upkeep:CLIENT_IDLE_MIN_MS
container id|amqp.session:NAME_CHARS_MAX
name of a reader|hub.links.consumer:READER_NAME_CHARS_MAX
keys of a map|hub.limits.sections:KEYS_MAX
values in one frame|amqp.composites:VALUES_MAX
events of one batch|hub.links.producer:EVENT_BYTES_MIN
what the annotations|hub.links.producer:GROWTH_MAX
sections of an event|hub.limits.sections:SECTIONS_MAX
request to `$cbs`|hub.links.requests:REQUEST_BYTES_MAX B|hub.links.requests:REQUEST_VALUES_MAX
events sent to readers|hub.links.consumer:SLICE_BYTES B
links for replies|hub.links.requests:REPLY_LINKS_MAX
connections to the page|dashboard.server.protocol:CONNECTIONS_MAX
connections to the HTTP API|hub.listeners.http:CONNECTIONS_MAX
time for the head|hub.listeners.http:REQUEST_S s|dashboard.server.protocol:REQUEST_S s
time between two requests|hub.listeners.http:KEEP_OPEN_S s
time for a client to read|dashboard.server.protocol:WRITE_S s
request line and headers|hub.listeners.http:HEAD_BYTES_MAX B|dashboard.server.guard:HEAD_BYTES_MAX B
blanks in a row|http_requests:BLANKS_MAX
line before a chunk|http_requests:LINE_BYTES_MAX
number of headers|http_requests:HEADERS_MAX
path of a request|hub.listeners.admin_api:TARGET_CHARS_MAX
body of a request|hub.listeners.http:BODY_BYTES_MAX B|dashboard.server.guard:BODY_BYTES_MAX B
what is handled before|dashboard.server.protocol:READ_BYTES_MAX B|hub.listeners.http:TURN_S s
open streams|dashboard.server.app:STREAMS_MAX
what the page shows|dashboard.monitors.events:BODY_CHARS_MAX
what the page shows|dashboard.monitors.events:PROPERTIES_MAX
what the page shows|dashboard.monitors.events:TEXT_CHARS_MAX
an opened alert|dashboard.views.alert_details:AROUND_MAX
an opened alert|dashboard.views.alert_details:TEXT_CHARS_MAX
an opened alert|dashboard.monitors.alert_details:EVENTS_MAX
an opened alert|dashboard.monitors.alert_details:FIND_S s
name of the person|dashboard.views.alert_details:NAME_CHARS_MAX
connections|telemetry.server:CONNECTIONS_MAX
time for a request and|telemetry.server:REQUEST_S s
request|scaler.service:REQUEST_BYTES_MAX B
calls and streams|scaler.service:CALLS_MAX
consumer groups whose|scaler.observed_lag:GROUPS_MAX
bytes that wait because|client.native.connection:WRITE_BYTES_MAX B
frame of a hub|client.native.connection:FRAME_BYTES_MAX B
partitions of a hub|client.native.management:PARTITIONS_MAX
ids of partitions|client.native.management:OFFSET_CHARS_MAX
message size|client.native.sender:SIZE_MAX_OF_ANY_TIER B
error text of a hub|client.errors:TEXT_CHARS_MAX|client.errors:CONDITION_CHARS_MAX
name of a host and etag|leases.stores.limits:NAME_CHARS_MAX
row, checkpoint and limit|leases.stores.limits:VALUE_BYTES_MAX
blobs in a listing|leases.stores.blob.container:PAGES_MAX|leases.stores.limits:ROWS_MAX
metadata of a blob|leases.stores.blob.rows:METADATA_CHARS_MAX
body of a lease blob|leases.stores.blob.container:BODY_BYTES_MAX B
rows of a consumer group|leases.stores.limits:ROWS_MAX
value in a lease file|leases.stores.sqlite.file:VALUE_BYTES_MAX B
statement on a lease file|leases.stores.sqlite.store:DEADLINE_S s
epoch, sequence number|leases.stores.limits:OFFSET_CHARS_MAX
"""
CASES = [
    (begin, constant)
    for line in STATED.strip().splitlines()
    for begin, *constants in [line.split("|")]
    for constant in constants
]


def value_of(constant: str) -> Any:
    """The value of MODULE:NAME; of a dataclass with slots it is the default of the field."""
    module, _, name = constant.partition(":")
    found = import_module(f"pumphouse.{module}")
    owner, _, field = name.partition(".")
    target = getattr(found, owner)
    return attrgetter(field)(target()) if field else target


def shown(value: float, unit: str) -> set[str]:
    """How the page may write it."""
    if unit == "s":
        return {f"{value:g} s"} if value >= 1 else {f"{value * 1000:g} ms"}
    if unit == "B":
        power = next(n for n in (30, 20, 10) if value % (1 << n) == 0)
        return {f"{int(value) >> power} {({30: 'G', 20: 'M', 10: 'K'})[power]}iB"}
    return {f"{value:,}", f"{value}"}


def row_of(begin: str) -> str:
    """The limit in the row whose first column is this or, else, begins so."""
    if begin in ROWS:
        return ROWS[begin]
    (found,) = [limit for what, limit in ROWS.items() if what.startswith(begin)]
    return found


@pytest.mark.parametrize(("begin", "constant"), CASES, ids=[each for _, each in CASES])
def test_a_stated_limit_is_that_of_the_code(begin: str, constant: str) -> None:
    name, _, unit = constant.partition(" ")
    limit = row_of(begin)
    texts = shown(value_of(name), unit)
    found = [re.search(rf"(?<![\d,.]){re.escape(text)}(?!\d|,\d)", limit) for text in texts]
    assert any(found), f"{begin}: {texts} is not in {limit!r}"


def test_every_row_is_found() -> None:
    assert len(ROWS) > 80
    assert {row_of(begin) for begin, _ in CASES} <= set(ROWS.values())


def test_another_number_is_noticed() -> None:
    assert shown(16_384, "") == {"16,384", "16384"}
    assert shown(65_536, "B") == {"64 KiB"}
    assert shown(0.005, "s") == {"5 ms"}
    assert re.search(r"(?<![\d,.])4,096(?!\d|,\d)", "14,096 of them") is None


# The modules that serve clients and have regular expressions; each checks the length first.
WITH_REGULAR_EXPRESSIONS = {
    "hub/filters.py",  # selectors: TEXT_CHARS_MAX
    "hub/routing.py",  # names of hubs and groups
    "dashboard/options.py",  # the token of the command line
    "amqp/columnar/patterns.py",  # events, in clients only
}


def test_few_modules_that_serve_clients_have_regular_expressions() -> None:
    package = ROOT / "src" / "pumphouse"
    folders = [package / name for name in ("amqp", "hub", "dashboard")]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    modules += [package / "http_requests.py", package / "websocket_transport.py"]
    found = {path.relative_to(package).as_posix() for path in modules if imports_re(path)}
    assert found == WITH_REGULAR_EXPRESSIONS


def imports_re(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(
        (isinstance(node, ast.Import) and any(alias.name == "re" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "re")
        for node in nodes
    )
