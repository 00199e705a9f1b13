"""The hub over HTTP: what is in it, who reads it, and changes to it. Requests in, answers out.

    GET    /health                     as Microsoft's emulator answers it
    GET    /hubs                       all hubs
    GET    /hubs/{hub}                 one of them
    PUT    /hubs/{hub}                 create it: {"partitions": 4, "groups": ["audit"]}
    DELETE /hubs/{hub}
    GET    /hubs/{hub}/groups          its consumer groups
    PUT    /hubs/{hub}/groups/{group}
    DELETE /hubs/{hub}/groups/{group}
    GET    /hubs/{hub}/partitions      begin, end, rates and readers of each

A name that contains slashes is written with %2F. Everything is JSON; what goes wrong is
{"error": "a sentence"}. The wire is http.py; who may call is callers.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from pumphouse.errors import AuthError, HubExists, HubNotFound, OptionError, QuotaExceeded
from pumphouse.hub.access import http_callers as callers
from pumphouse.hub.namespace import EventHub, Namespace, OpenReader, Partition
from pumphouse.hub.rates import Rate, Rates, Totals

OK, CREATED, NO_CONTENT = 200, 201, 204
BAD_REQUEST, NOT_FOUND, NOT_ALLOWED, CONFLICT = 400, 404, 405, 409
LOOKING = ("GET", "HEAD")
PARTITIONS = 4  # of a hub that is created without saying how many, as in Python


@dataclass(frozen=True, slots=True)
class Request:
    """A request, whole. Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and what is said in JSON; None says nothing."""

    status: int
    said: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Admin:
    """Answers requests about one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.port = 0  # where it is reached; known once the door is open
        self.rates: Rates[Partition] = Rates()

    def answer(self, request: Request) -> Answer:
        try:
            callers.check_caller(request.headers, self.port)
            return self.route(request)
        except AuthError as refused:
            return error(refused.status, refused.description)
        except HubNotFound as wrong:
            return error(NOT_FOUND, str(wrong))
        except HubExists as wrong:
            return error(CONFLICT, str(wrong))
        except QuotaExceeded as wrong:
            return error(callers.FORBIDDEN, str(wrong))
        except OptionError as wrong:
            return error(BAD_REQUEST, str(wrong))

    def route(self, request: Request) -> Answer:
        # Split first, decode then: a slash inside a name comes as %2F.
        path = request.target.partition("?")[0].strip("/")
        shape, names = shape_of([unquote(part) for part in path.split("/")])
        methods = ROUTES.get(shape)
        if methods is None:
            return error(NOT_FOUND, f"there is nothing at /{path[:200]}; see /hubs and /health")
        method = "GET" if request.method == "HEAD" else request.method
        operation = methods.get(method)
        if operation is None:
            allowed = ", ".join(sorted(methods))
            refusal = error(NOT_ALLOWED, f"{method} is not possible here; possible is {allowed}")
            return Answer(refusal.status, refusal.said, {"Allow": allowed})
        if method not in LOOKING:
            self.check_key(request, names)
        return operation(self, request, *names)

    def check_key(self, request: Request, names: Sequence[str]) -> None:
        # Whoever may manage a hub may manage its groups; hubs are the namespace's affair.
        path = names[0] if len(names) > 1 else ""
        now = self.namespace.clock.now()
        callers.check_key(request.headers, path, self.namespace.rules, now)

    # -- rates ------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Look at all totals, so that rates can be told later."""
        now = self.namespace.clock.monotonic()
        everything = [part for hub in self.namespace.hubs for part in hub.partitions]
        self.rates.sample(now, {partition: totals(partition) for partition in everything})

    def rate(self, partition: Partition) -> Rate:
        return self.rates.rate(partition, self.namespace.clock.monotonic(), totals(partition))

    # -- operations -------------------------------------------------------------------------------

    def health(self, request: Request) -> Answer:
        return Answer(OK, {"status": "healthy", "message": "Service is healthy."})

    def list_hubs(self, request: Request) -> Answer:
        return Answer(OK, {"hubs": [self.describe(hub) for hub in self.namespace.hubs]})

    def show_hub(self, request: Request, name: str) -> Answer:
        return Answer(OK, self.describe(self.namespace.hub(name)))

    def put_hub(self, request: Request, name: str) -> Answer:
        """Create a hub. One that is there already is fine, if it has that many partitions."""
        partitions, groups = read_wishes(request.body)
        try:
            hub = self.namespace.hub(name)
        except HubNotFound:
            count = PARTITIONS if partitions is None else partitions
            hub = self.namespace.create_hub(name, count, groups)
            return Answer(CREATED, self.describe(hub))
        if partitions not in (None, len(hub.partitions)):
            raise HubExists(
                f"hub {hub.name!r} exists already, with {len(hub.partitions)} partitions"
            )
        for group in groups:
            self.put_group(request, name, group)
        return Answer(OK, self.describe(hub))

    def delete_hub(self, request: Request, name: str) -> Answer:
        self.namespace.delete_hub(name)
        return Answer(NO_CONTENT)

    def list_groups(self, request: Request, name: str) -> Answer:
        hub = self.namespace.hub(name)
        return Answer(OK, {"groups": [describe_group(hub, group) for group in sorted(hub.groups)]})

    def put_group(self, request: Request, name: str, group: str) -> Answer:
        """Create a consumer group, unless it is there already."""
        hub = self.namespace.hub(name)
        status = OK if group.lower() in hub.groups else CREATED
        if status == CREATED:
            self.namespace.create_group(name, group)
        return Answer(status, describe_group(hub, group.lower()))

    def delete_group(self, request: Request, name: str, group: str) -> Answer:
        self.namespace.delete_group(name, group)
        return Answer(NO_CONTENT)

    def list_partitions(self, request: Request, name: str) -> Answer:
        hub = self.namespace.hub(name)
        return Answer(OK, {"partitions": [self.describe_partition(p, hub) for p in hub.partitions]})

    # -- descriptions -----------------------------------------------------------------------------

    def describe(self, hub: EventHub) -> dict[str, Any]:
        logs = [partition.log for partition in hub.partitions]
        rates = [self.rate(partition) for partition in hub.partitions]
        return {
            "name": hub.name,
            "created_at": time(hub.created_ms),
            "partitions": len(hub.partitions),
            "groups": sorted(hub.groups.values()),
            "events": sum(log.next_sequence - log.begin for log in logs),
            "bytes": sum(log.size for log in logs),
            "in_per_s": round(sum(rate.in_per_s for rate in rates), 3),
            "out_per_s": round(sum(rate.out_per_s for rate in rates), 3),
            "readers": sum(1 for _ in hub.readers()),
        }

    def describe_partition(self, partition: Partition, hub: EventHub) -> dict[str, Any]:
        log, rate = partition.log, self.rate(partition)
        return {
            "id": partition.id,
            "begin": log.begin,
            "end": log.next_sequence,
            "bytes": log.size,
            "last_enqueued_at": None if log.last_offset < 0 else time(log.last_ms),
            "in_per_s": rate.in_per_s,
            "out_per_s": rate.out_per_s,
            "readers": [
                describe_reader(partition, hub.groups.get(group, group), reader)
                for group, readers in sorted(partition.readers.items())
                for reader in readers
            ],
        }


def describe_group(hub: EventHub, group: str) -> dict[str, Any]:
    found = [
        (partition, reader)
        for partition in hub.partitions
        for reader in partition.readers.get(group, [])
    ]
    return {
        "name": hub.groups[group],
        "readers": len(found),
        "lag": sum(lag(partition, reader) for partition, reader in found),
    }


def describe_reader(partition: Partition, group: str, link: OpenReader) -> dict[str, Any]:
    return {
        "name": link.reader.name,
        "client": link.client,
        "group": group,
        "epoch": link.reader.epoch,
        "next": link.next_sequence,
        "lag": lag(partition, link),
    }


def lag(partition: Partition, link: OpenReader) -> int:
    """Events that a reader has not been sent yet."""
    return partition.log.next_sequence - max(link.next_sequence, partition.log.begin)


def totals(partition: Partition) -> Totals:
    return Totals(partition.log.next_sequence, partition.events_sent)


def time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def read_wishes(body: bytes) -> tuple[int | None, list[str]]:
    """How many partitions (None: not said) and which groups a hub is to have."""
    try:
        wishes = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise OptionError("the body is not JSON") from None
    if not isinstance(wishes, dict) or wishes.keys() - {"partitions", "groups"}:
        raise OptionError('the body has the form {"partitions": 4, "groups": ["audit"]}')
    partitions, groups = wishes.get("partitions"), wishes.get("groups", [])
    if partitions is not None and (not isinstance(partitions, int) or isinstance(partitions, bool)):
        raise OptionError(f"partitions must be a whole number (got {partitions!r:.80})")
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise OptionError("groups must be a list of names")
    return partitions, groups


def error(status: int, sentence: str) -> Answer:
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    return Answer(status, {"error": sentence}, headers)


def shape_of(parts: Sequence[str]) -> tuple[str, list[str]]:
    """The kind of place that a path names, and the names in it: every second part is one."""
    shape = [part if place % 2 == 0 else "*" for place, part in enumerate(parts)]
    return "/".join(shape), [part for place, part in enumerate(parts) if place % 2]


Operation = Callable[..., Answer]

ROUTES: Mapping[str, Mapping[str, Operation]] = {
    "health": {"GET": Admin.health},
    "hubs": {"GET": Admin.list_hubs},
    "hubs/*": {"GET": Admin.show_hub, "PUT": Admin.put_hub, "DELETE": Admin.delete_hub},
    "hubs/*/groups": {"GET": Admin.list_groups},
    "hubs/*/groups/*": {"PUT": Admin.put_group, "DELETE": Admin.delete_group},
    "hubs/*/partitions": {"GET": Admin.list_partitions},
}
