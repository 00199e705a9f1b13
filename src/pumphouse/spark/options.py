"""What a query's options say, read and checked once, with an error that names the option.

Spark hands over names in any case; the Scala connector's prefix `eventhubs.` is taken off. A value
that makes no sense, a name that is unknown and a combination that cannot work all fail before
anything is read or written.

    spark.readStream.options(...) -> read_source -> SourceOptions -> planner, tasks
    df.writeStream.options(...)   -> read_sink   -> SinkOptions   -> writer
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pumphouse.client.base import ConnectionString, RetryOptions, parse_connection_string
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.catalogue import BOTH, BY_NAME, READ, REMOVED_BY_NAME, WRITE, Option
from pumphouse.spark.durations import read_duration, read_size
from pumphouse.spark.positions import read_position, read_positions
from pumphouse.spark.tenancy.journal import Tenancy
from pumphouse.spark.tenancy.options import read_tenancy

PREFIX = "eventhubs."
# Spark puts options of its own beside ours.
SPARK_OPTIONS = {"path", "__paths__", "checkpointlocation", "queryname", "outputmode"}
RETRIES = {READ: 3, WRITE: 8}  # a hub that is busy must be waited for, or rows are sent twice
EVENTS_PER_PARTITION = 10_000  # per trigger; the Scala connector's 1,000 keeps no stream busy


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """Which hub, and who we are. Its repr holds no secret; pickled, it goes to the executors."""

    connection: ConnectionString
    hub: str
    credential: str = "none"
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    ca_file: str = ""
    transport: str = "tcp"
    driver: str = "native"
    operation_timeout_s: float = 300.0
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes. None is no limit."""

    events: int | None = None  # None: EVENTS_PER_PARTITION for each partition
    events_per_partition: int | None = None
    bytes: int | None = None
    events_min: int | None = None
    delay_max_s: float = 900.0
    slow_adjustment: bool = False
    acceptable_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How tasks read."""

    exclusive: bool = True
    prefetch: int = 2000
    receiver_timeout_s: float = 60.0
    silent_max_s: float | None = None
    at_once: int = 16
    batch_rows: int = 4000
    batch_bytes: int = 16 << 20
    properties: bool = True
    system_properties: bool = True
    metric_plugin: str = ""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    identity: HubIdentity
    group: str
    start: Position
    end: Position
    starts: Mapping[str, Position]
    ends: Mapping[str, Position]
    partitions: tuple[str, ...]  # () is all
    fail_on_data_loss: bool
    skip_unavailable: bool
    partitions_per_task: int
    tasks_min: int | None
    refresh_s: float
    discovery: bool
    discovery_s: float
    limits: Limits
    reading: ReadOptions
    feedback: bool = True
    store: str = field(default="", repr=False)
    tenancy: Tenancy | None = None  # None: it reads all partitions, whoever else does


@dataclass(frozen=True, slots=True)
class SinkOptions:
    identity: HubIdentity
    partition: str | None
    key: str | None
    batch_bytes: int | None
    in_flight: int
    send_timeout_s: float
    rate_max: int | None
    dedup: bool


def read_source(given: Mapping[str, str], *, streaming: bool, now_ms: int) -> SourceOptions:
    """The options of a query that reads."""
    values = OptionValues(given, READ)
    identity = read_identity(values)
    starts = values.positions("startingPositions", identity.hub, now_ms)
    ends = values.positions("endingPositions", identity.hub, now_ms)
    start = read_start(values, streaming, now_ms)
    end = values.position("endingPosition", now_ms)
    if streaming and (end is not None or ends):
        raise OptionError("endingPosition and endingPositions are for batches: a stream has no end")
    # A batch that somebody reads on the side must not throw out a stream that runs all year.
    exclusive = (
        values.flag("useExclusiveReceiver") if values.given("useExclusiveReceiver") else streaming
    )
    tasks_min = values.count("minPartitions")
    if exclusive and tasks_min is not None:
        raise OptionError(
            "minPartitions lets several tasks read one partition, which exclusive receivers cannot;"
            " set useExclusiveReceiver=false or leave minPartitions out"
        )
    return SourceOptions(
        identity=identity,
        group=read_group(values.text("consumerGroup")),
        start=start,
        end=end or LATEST,
        starts=starts,
        ends=ends,
        partitions=read_partitions(values.text("partitions")),
        fail_on_data_loss=values.flag("failOnDataLoss"),
        skip_unavailable=values.text("unavailablePartitions") == "skip",
        partitions_per_task=values.count("partitionsPerTask") or 1,
        tasks_min=tasks_min,
        refresh_s=values.duration("metadataRefreshInterval"),
        discovery=values.flag("dynamicPartitionDiscovery"),
        discovery_s=values.duration("partitionDiscoveryInterval"),
        limits=read_limits(values),
        reading=read_reading(values, exclusive),
        feedback=values.flag("taskFeedback"),
        store=values.text("checkpointStore"),
        tenancy=read_tenancy(values, streaming=streaming, exclusive=exclusive),
    )


def read_sink(given: Mapping[str, str]) -> SinkOptions:
    """The options of a query that writes."""
    values = OptionValues(given, WRITE)
    partition, key = values.text("partitionId") or None, values.text("partitionKey") or None
    if partition is not None and key is not None:
        raise OptionError("partitionId and partitionKey exclude each other; give one of them")
    return SinkOptions(
        identity=read_identity(values),
        partition=partition,
        key=key,
        batch_bytes=values.size("maxBatchBytes"),
        in_flight=values.count("maxInFlight") or 1,
        send_timeout_s=values.duration("sendTimeout"),
        rate_max=values.count("maxSendRate"),
        dedup=values.flag("dedupProperties"),
    )


# -- parts ----------------------------------------------------------------------------------------


def read_identity(values: OptionValues) -> HubIdentity:
    connection = read_connection(values)
    hub = values.text("name") or connection.hub
    if not hub:
        raise OptionError(
            "no hub is named: add EntityPath=HUB to connectionString, or set the option name"
        )
    credential = values.text("credential")
    if credential == "client_secret":
        for name in ("tenantId", "clientId", "clientSecret"):
            if not values.text(name):
                raise OptionError(f"credential=client_secret needs the option {name}")
    return HubIdentity(
        connection=connection,
        hub=hub,
        credential=credential,
        tenant_id=values.text("tenantId"),
        client_id=values.text("clientId"),
        client_secret=values.text("clientSecret"),
        ca_file=values.text("caFile"),
        transport=values.text("transport"),
        driver=values.text("driver"),
        operation_timeout_s=values.duration("operationTimeout"),
        retry=read_retry(values),
    )


def read_retry(values: OptionValues) -> RetryOptions:
    total, backoff_s = values.count("retry.total"), values.duration("retry.backoff")
    if values.side == WRITE and values.text("onThrottle") == "fail":
        total = 0
    attempts = RETRIES[values.side] if total is None else total
    return RetryOptions(attempts, backoff_s, max(values.duration("retry.max"), backoff_s))


def read_connection(values: OptionValues) -> ConnectionString:
    text, namespace = values.text("connectionString"), values.text("fullyQualifiedNamespace")
    if text and namespace:
        raise OptionError("connectionString and fullyQualifiedNamespace exclude each other")
    if text:
        if "=" not in text.rstrip("="):
            raise OptionError(
                "connectionString is not one (no Name=Value in it); if it was encrypted for the "
                "Scala connector, give it as it was before: nothing here writes it anywhere"
            )
        return parse_connection_string(text)
    if not namespace:
        raise OptionError(
            "no hub to talk to: set connectionString, or fullyQualifiedNamespace with a credential"
        )
    return connection_from_parts(values, namespace)


def connection_from_parts(values: OptionValues, namespace: str) -> ConnectionString:
    key_name, key = values.text("sharedAccessKeyName"), values.text("sharedAccessKey")
    if values.text("credential") == "none" and not (key_name and key):
        raise OptionError(
            "fullyQualifiedNamespace needs credential=default (or another), or "
            "sharedAccessKeyName and sharedAccessKey"
        )
    host = namespace.removeprefix("sb://").strip("/")
    name, _, port = host.partition(":")
    if port and not port.isdecimal():
        raise OptionError(f"fullyQualifiedNamespace is {namespace!r}, which is no host")
    return ConnectionString(name, int(port or 5671), host, key_name=key_name, key=key)


def read_start(values: OptionValues, streaming: bool, now_ms: int) -> Position:
    start = values.position("startingPosition", now_ms)
    stamp = values.position("startingTimestamp", now_ms)
    if start is not None and stamp is not None:
        raise OptionError("startingPosition and startingTimestamp exclude each other")
    return start or stamp or (LATEST if streaming else EARLIEST)


def read_group(text: str) -> str:
    if not text.strip():
        raise OptionError("consumerGroup is empty; name one, or leave it out to read as $Default")
    return text


def read_limits(values: OptionValues) -> Limits:
    limits = Limits(
        events=values.count("maxEventsPerTrigger"),
        events_per_partition=values.count("maxEventsPerPartition"),
        bytes=values.size("maxBytesPerTrigger"),
        events_min=values.count("minEventsPerTrigger"),
        delay_max_s=values.duration("maxTriggerDelay"),
        slow_adjustment=values.flag("slowPartitionAdjustment"),
        acceptable_s=values.duration("maxAcceptableBatchReceiveTime"),
    )
    if not values.flag("taskFeedback") and (limits.bytes or limits.slow_adjustment):
        name = "maxBytesPerTrigger" if limits.bytes else "slowPartitionAdjustment"
        raise OptionError(f"{name} needs what tasks tell of earlier batches: taskFeedback=true")
    return limits


def read_reading(values: OptionValues, exclusive: bool) -> ReadOptions:
    return ReadOptions(
        exclusive=exclusive,
        prefetch=values.count("prefetchCount") or 1,
        receiver_timeout_s=values.duration("receiverTimeout"),
        silent_max_s=values.duration("maxSilentTime") or None,
        at_once=values.count("threadPoolSize") or 1,
        batch_rows=values.count("arrowBatchRows") or 1,
        batch_bytes=values.size("arrowBatchBytes") or 1,
        properties=values.flag("includeProperties"),
        system_properties=values.flag("includeSystemProperties"),
        metric_plugin=read_plugin(values.text("metricPlugin")),
    )


def read_plugin(text: str) -> str:
    module, colon, function = text.strip().partition(":")
    if text and not (colon and module and function.isidentifier()):
        raise OptionError(
            f"metricPlugin is {text!r}; write module:callable, such as my.metrics:on_read"
        )
    return text.strip()


def read_partitions(text: str) -> tuple[str, ...]:
    """Partitions out of `0,1,5-7`."""
    found: list[str] = []
    for word in (word.strip() for word in text.strip("[] ").split(",")):
        first, dash, last = word.partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
            found += map(str, range(int(first), int(last) + 1))
        elif word.strip('"').isdecimal():
            found.append(word.strip('"'))
        elif word:
            raise OptionError(f"partitions is {text!r}; write numbers and ranges such as 0,1,5-7")
    return tuple(dict.fromkeys(found))


# -- reading values -------------------------------------------------------------------------------


class OptionValues:
    """The options that were given, checked for their names; the others have their defaults."""

    def __init__(self, given: Mapping[str, str], side: str) -> None:
        self.side = side
        self._given: dict[str, str] = {}
        self._own: dict[str, str] = {}
        for written, value in given.items():
            option = recognise(written, side)
            if option is not None:
                self.keep(option.name, str(value))
            else:
                self._own[written.strip().lower().removeprefix(PREFIX)] = str(value)

    def keep(self, name: str, value: str) -> None:
        """With and without the prefix it is one option, and has one value."""
        if self._given.setdefault(name, value) != value:
            raise OptionError(
                f"{name} is given twice, with and without {PREFIX}, and differs; keep one of them"
            )

    def text(self, name: str) -> str:
        option = BY_NAME[name.lower()]
        value = self._given.get(name, option.default)
        if option.kind == "words":
            return check_choice(option, value)
        return value

    def given(self, name: str) -> bool:
        return name in self._given

    def own(self, name: str) -> str:
        """An option of Spark's own."""
        return self._own.get(name.lower(), "")

    def flag(self, name: str) -> bool:
        value = self.text(name).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} is {self.text(name)!r}; it is either true or false")
        return value == "true"

    def count(self, name: str) -> int | None:
        option, value = BY_NAME[name.lower()], self.text(name).strip().replace("_", "")
        if not value:
            return None
        number = int(value) if value.isdecimal() else -1
        if number < option.least or (option.most is not None and number > option.most):
            most = f" and at most {option.most:,}" if option.most is not None else ""
            raise OptionError(
                f"{name} is {self.text(name)!r}; it must be a whole number, at least "
                f"{option.least:,}{most}"
            )
        return number

    def size(self, name: str) -> int | None:
        option, value = BY_NAME[name.lower()], self.text(name)
        if not value:
            return None
        size = read_size(name, value)
        if size < option.least or (option.most is not None and size > option.most):
            most = f" and at most {option.most:,}" if option.most is not None else ""
            raise OptionError(
                f"{name} is {value!r}; it must be at least {option.least:,} bytes{most}"
            )
        return size

    def duration(self, name: str) -> float:
        option, value = BY_NAME[name.lower()], self.text(name)
        seconds = read_duration(name, value) if value else 0.0
        if option.least and not seconds:
            raise OptionError(f"{name} is {value!r}; it must be longer than nothing")
        return seconds

    def position(self, name: str, now_ms: int) -> Position | None:
        value = self.text(name)
        return read_position(name, value, now_ms) if value else None

    def positions(self, name: str, hub: str, now_ms: int) -> dict[str, Position]:
        value = self.text(name)
        return read_positions(name, value, hub, now_ms) if value else {}


def recognise(written: str, side: str) -> Option | None:
    """The option that a name means; None for Spark's own."""
    name = written.strip().lower().removeprefix(PREFIX)
    if name in SPARK_OPTIONS:
        return None
    if name in REMOVED_BY_NAME:
        raise OptionError(
            f"the option {written} is not known here: {REMOVED_BY_NAME[name].instead}"
        )
    option = BY_NAME.get(name)
    if option is None:
        raise OptionError(f"there is no option {written}{nearest(name, side)}")
    if option.side not in (BOTH, side):
        verb = {READ: "reading", WRITE: "writing"}
        raise OptionError(f"the option {option.name} is for {verb[option.side]}")
    return option


def nearest(name: str, side: str) -> str:
    known = {
        one.lower(): option.name for one, option in BY_NAME.items() if option.side in (BOTH, side)
    }
    found = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {known[found[0]]}?" if found else "; see the option table in the docs"


def check_choice(option: Option, value: Any) -> str:
    word = str(value).strip().lower()
    if word not in option.words:
        raise OptionError(f"{option.name} is {value!r}; it is one of {', '.join(option.words)}")
    return word
