"""The admin API over HTTP: lists and changes hubs and consumer groups, shows readers and rates.

    GET    /health                     the same response as Microsoft's emulator
    GET    /hubs                       all hubs
    GET    /hubs/{hub}                 one hub
    PUT    /hubs/{hub}                 create it: {"partitions": 4, "groups": ["audit"]}
    DELETE /hubs/{hub}
    GET    /hubs/{hub}/groups          its consumer groups
    PUT    /hubs/{hub}/groups/{group}
    DELETE /hubs/{hub}/groups/{group}
    GET    /hubs/{hub}/partitions      begin, end, rates and readers of each

A slash inside a name is written as %2F. Requests and responses are JSON; an error is
{"error": "text"}. http.py has the protocol, access/http_callers.py the access checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import unquote

from pumphouse.clock import machine_now
from pumphouse.errors import (
    AuthError,
    ChangeNotStored,
    HubExists,
    HubNotFound,
    OptionError,
    QuotaExceeded,
)
from pumphouse.hub.access.http_callers import (
    FORBIDDEN,
    LOOPBACK_NAMES,
    check_caller,
    check_key,
)
from pumphouse.hub.namespace import EventHub, Namespace, OpenReader, Partition
from pumphouse.hub.rates import Rate, Rates, Totals

OK, CREATED, NO_CONTENT = 200, 201, 204
BAD_REQUEST, NOT_FOUND, NOT_ALLOWED, CONFLICT = 400, 404, 405, 409
FAILED, DISK_FULL = 500, 507
TOO_LONG = 414
TARGET_CHARS_MAX = 1024  # with every character escaped, a hub and a group have 920
READ_METHODS = ("GET", "HEAD")
# What a response shows of readers, whose names the clients choose.
READERS_MAX, READER_CHARS_MAX = 1000, 64
DEFAULT_PARTITIONS = 4  # as in `EmbeddedHub.create_hub`
# Above this number of partitions in the namespace, a response takes milliseconds, and the same one
# is sent for a while. Reading needs no key.
FRESH_PARTITIONS_MAX, REUSE_S = 100, 1.0
REUSED_MAX = 64  # responses


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request. Header names are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """A status and a body to be sent as JSON; None: no body; bytes: encoded already."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The encoded body."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return json.dumps(self.body, separators=(",", ":")).encode() + b"\n"


class RecentResponses:
    """Responses that are sent again for a while, encoded, by pattern and names of their path.

    A change of hubs or groups ends their use at once.
    """

    def __init__(self) -> None:
        self._responses: dict[tuple[str, ...], tuple[float, Response]] = {}
        self._revision = 0

    def find(self, path: tuple[str, ...], revision: int, now: float) -> Response | None:
        if revision != self._revision:
            self._responses.clear()
            self._revision = revision
        made_at, response = self._responses.get(path, (now, None))
        return response if now - made_at < REUSE_S else None

    def add(self, path: tuple[str, ...], response: Response, now: float) -> Response:
        """Keep a response; returns it encoded."""
        if len(self._responses) >= REUSED_MAX:
            self._responses.clear()
        encoded = Response(response.status, response.content, response.headers)
        self._responses[path] = now, encoded
        return encoded


class AdminApi:
    """Handles requests about one namespace."""

    def __init__(self, namespace: Namespace, names: Collection[str] = LOOPBACK_NAMES) -> None:
        self.namespace = namespace
        self.names = names  # of this server, as in a Host header
        self.port = 0  # its own port; known after the listener has started
        self.rates: Rates[Partition] = Rates()
        self.recent = RecentResponses()

    def handle(self, request: Request) -> Response:
        try:
            check_caller(request.headers, self.port, self.names)
            return self.route(request)
        except AuthError as refusal:
            return error(refusal.status, refusal.description)
        except HubNotFound as failure:
            return error(NOT_FOUND, str(failure))
        except HubExists as failure:
            return error(CONFLICT, str(failure))
        except QuotaExceeded as failure:
            return error(FORBIDDEN, str(failure))
        except OptionError as failure:
            return error(BAD_REQUEST, str(failure))
        except ChangeNotStored as failure:
            return error(DISK_FULL if failure.disk_full else FAILED, failure.description)

    def route(self, request: Request) -> Response:
        if len(request.target) > TARGET_CHARS_MAX:
            return error(TOO_LONG, f"a path has at most {TARGET_CHARS_MAX} characters")
        # Split before decoding: a slash inside a name comes as %2F.
        path = request.target.partition("?")[0].strip("/")
        pattern, names = parse_path([unquote(part) for part in path.split("/")])
        methods = ROUTES.get(pattern)
        if methods is None:
            return error(NOT_FOUND, f"/{path[:200]} not found; see /hubs and /health")
        method = "GET" if request.method == "HEAD" else request.method
        operation = methods.get(method)
        if operation is None:
            allowed = ", ".join(sorted(methods))
            refusal = error(NOT_ALLOWED, f"{method[:20]} is not allowed here; use {allowed}")
            return Response(refusal.status, refusal.body, {"Allow": allowed})
        if method in READ_METHODS:
            return self.read((pattern, *names), partial(operation, self, request, *names))
        self.check_key(request, names)
        return operation(self, request, *names)

    def read(self, path: tuple[str, ...], operation: Callable[[], Response]) -> Response:
        """The response to a GET; for a large namespace, one of the last second."""
        if self.namespace.partition_count <= FRESH_PARTITIONS_MAX:
            return operation()
        now = self.namespace.clock.monotonic()
        recent = self.recent.find(path, self.namespace.revision, now)
        return recent or self.recent.add(path, operation(), now)

    def check_key(self, request: Request, names: Sequence[str]) -> None:
        # Manage of a hub is enough for its groups; a hub itself needs Manage of the namespace.
        path = names[0] if len(names) > 1 else ""
        clock = self.namespace.clock
        check_key(request.headers, path, self.namespace.rules, clock.now(), machine_now(clock))

    # -- rates ------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Record all totals, to compute rates from them later."""
        now = self.namespace.clock.monotonic()
        partitions = [each for hub in self.namespace.hubs for each in hub.partitions]
        self.rates.sample(now, {partition: totals(partition) for partition in partitions})

    def rate(self, partition: Partition) -> Rate:
        return self.rates.rate(partition, self.namespace.clock.monotonic(), totals(partition))

    # -- operations -------------------------------------------------------------------------------

    def health(self, request: Request) -> Response:
        return Response(OK, {"status": "healthy", "message": "Service is healthy."})

    def list_hubs(self, request: Request) -> Response:
        return Response(OK, {"hubs": [self.describe(hub) for hub in self.namespace.hubs]})

    def show_hub(self, request: Request, name: str) -> Response:
        return Response(OK, self.describe(self.namespace.hub(name)))

    def put_hub(self, request: Request, name: str) -> Response:
        """Create a hub. An existing one is fine if it has the same number of partitions."""
        partitions, groups = parse_hub_body(request.body)
        try:
            hub = self.namespace.hub(name)
        except HubNotFound:
            count = DEFAULT_PARTITIONS if partitions is None else partitions
            hub = self.namespace.create_hub(name, count, groups)
            return Response(CREATED, self.describe(hub))
        if partitions not in (None, len(hub.partitions)):
            raise HubExists(
                f"hub {hub.name!r} already exists, with {len(hub.partitions)} partitions; "
                "use that number, or delete the hub first"
            )
        self.namespace.ensure_groups(name, groups)
        return Response(OK, self.describe(hub))

    def delete_hub(self, request: Request, name: str) -> Response:
        self.namespace.delete_hub(name)
        return Response(NO_CONTENT)

    def list_groups(self, request: Request, name: str) -> Response:
        hub = self.namespace.hub(name)
        return Response(
            OK, {"groups": [describe_group(hub, group) for group in sorted(hub.groups)]}
        )

    def put_group(self, request: Request, name: str, group: str) -> Response:
        """Create a consumer group, unless it exists."""
        hub = self.namespace.hub(name)
        status = OK if group.lower() in hub.groups else CREATED
        if status == CREATED:
            self.namespace.create_group(name, group)
        return Response(status, describe_group(hub, group.lower()))

    def delete_group(self, request: Request, name: str, group: str) -> Response:
        self.namespace.delete_group(name, group)
        return Response(NO_CONTENT)

    def list_partitions(self, request: Request, name: str) -> Response:
        hub = self.namespace.hub(name)
        described, left = [], READERS_MAX
        for partition in hub.partitions:
            described.append(self.describe_partition(partition, hub, left))
            left -= len(described[-1]["readers"])
        readers = sum(1 for _ in hub.readers())
        left_out = readers - (READERS_MAX - left)
        return Response(OK, {"partitions": described, "readers_left_out": left_out})

    # -- descriptions -----------------------------------------------------------------------------

    def describe(self, hub: EventHub) -> dict[str, Any]:
        logs = [partition.log for partition in hub.partitions]
        rates = [self.rate(partition) for partition in hub.partitions]
        return {
            "name": hub.name,
            "created_at": iso_time(hub.created_ms),
            "partitions": len(hub.partitions),
            "groups": sorted(hub.groups.values()),
            "events": sum(log.next_sequence - log.begin for log in logs),
            "bytes": sum(log.size for log in logs),
            "in_per_s": round(sum(rate.in_per_s for rate in rates), 3),
            "out_per_s": round(sum(rate.out_per_s for rate in rates), 3),
            "readers": sum(1 for _ in hub.readers()),
        }

    def describe_partition(
        self, partition: Partition, hub: EventHub, readers_max: int
    ) -> dict[str, Any]:
        log, rate = partition.log, self.rate(partition)
        return {
            "id": partition.id,
            "begin": log.begin,
            "end": log.next_sequence,
            "bytes": log.size,
            "last_enqueued_at": None if log.last_offset < 0 else iso_time(log.last_ms),
            "in_per_s": rate.in_per_s,
            "out_per_s": rate.out_per_s,
            "readers": [
                describe_reader(partition, hub.groups.get(group, group), reader)
                for group, readers in sorted(partition.readers.items())
                for reader in readers
            ][:readers_max],
        }


def describe_group(hub: EventHub, group: str) -> dict[str, Any]:
    readers = [
        (partition, reader)
        for partition in hub.partitions
        for reader in partition.readers.get(group, [])
    ]
    return {
        "name": hub.groups[group],
        "readers": len(readers),
        "lag": sum(lag(partition, reader) for partition, reader in readers),
    }


def describe_reader(partition: Partition, group: str, link: OpenReader) -> dict[str, Any]:
    return {
        "name": None if link.reader.name is None else link.reader.name[:READER_CHARS_MAX],
        "client": link.client[:READER_CHARS_MAX],
        "group": group,
        "epoch": link.reader.epoch,
        "next": link.next_sequence,
        "lag": lag(partition, link),
    }


def lag(partition: Partition, link: OpenReader) -> int:
    """The number of events that a reader has not been sent yet."""
    return partition.log.next_sequence - max(link.next_sequence, partition.log.begin)


def totals(partition: Partition) -> Totals:
    return Totals(partition.log.next_sequence, partition.events_sent)


def iso_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def parse_hub_body(body: bytes) -> tuple[int | None, list[str]]:
    """The number of partitions (None: not given) and the groups of a hub to create."""
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise OptionError("the body is not valid JSON") from None
    if not isinstance(fields, dict) or fields.keys() - {"partitions", "groups"}:
        raise OptionError('the body must have the form {"partitions": 4, "groups": ["audit"]}')
    partitions, groups = fields.get("partitions"), fields.get("groups", [])
    if partitions is not None and (not isinstance(partitions, int) or isinstance(partitions, bool)):
        raise OptionError(f"partitions must be a whole number (got {partitions!r:.80})")
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise OptionError(f"groups must be a list of names (got {groups!r:.80})")
    return partitions, groups


def error(status: int, text: str) -> Response:
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    return Response(status, {"error": text}, headers)


def parse_path(parts: Sequence[str]) -> tuple[str, list[str]]:
    """The pattern of a path, for ROUTES, and the names in it: every second part is a name."""
    pattern = [part if number % 2 == 0 else "*" for number, part in enumerate(parts)]
    return "/".join(pattern), [part for number, part in enumerate(parts) if number % 2]


Operation = Callable[..., Response]

ROUTES: Mapping[str, Mapping[str, Operation]] = {
    "health": {"GET": AdminApi.health},
    "hubs": {"GET": AdminApi.list_hubs},
    "hubs/*": {"GET": AdminApi.show_hub, "PUT": AdminApi.put_hub, "DELETE": AdminApi.delete_hub},
    "hubs/*/groups": {"GET": AdminApi.list_groups},
    "hubs/*/groups/*": {"PUT": AdminApi.put_group, "DELETE": AdminApi.delete_group},
    "hubs/*/partitions": {"GET": AdminApi.list_partitions},
}
