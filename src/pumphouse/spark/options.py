"""The options of a query as data, read and checked before anything is read or written.

A value that cannot be parsed, an unknown name and a combination that cannot work raise an error
that names the option.

    spark.readStream.options(...) -> read_source -> SourceOptions -> planner, tasks
    df.writeStream.options(...)   -> read_sink   -> SinkOptions   -> writer
                                     ^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pumphouse.client.base import ConnectionString, RetryOptions, parse_connection_string
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.catalogue import BATCH, READ, STREAM, WRITE
from pumphouse.spark.option_values import OptionValues, invalid
from pumphouse.spark.tenancy.options import TenancyOptions, read_tenancy

CONNECTION_VARIABLE = "PUMPHOUSE_CONNECTION"
NOT_IN_VARIABLES = re.compile(r"[^A-Za-z0-9]")
DIGITS_MAX = 5  # of a port, and of the number of a partition
PARTITIONS_MAX = 10_000  # in a range of the option partitions; hubs have up to 2,048
EVENTS_PER_PARTITION = 10_000  # per trigger; the Scala connector's 1,000 leaves streams idle


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """The hub, and the identity to use there. It is pickled and sent to the executors.

    Its repr holds no secret.
    """

    connection: ConnectionString
    hub: str
    credential: str
    tenant_id: str
    client_id: str
    client_secret: str = field(repr=False)
    ca_file: str
    transport: str
    driver: str
    operation_timeout_s: float
    retry: RetryOptions


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes. None is no limit, except for `events`."""

    events: int | None = None  # None: EVENTS_PER_PARTITION for each partition
    events_per_partition: int | None = None
    bytes: int | None = None
    events_min: int | None = None
    delay_max_s: float = 0.0
    slow_adjustment: bool = False
    acceptable_s: float = 0.0  # maxAcceptableBatchReceiveTime, for slow_adjustment
    first_batch: bool = False  # in Spark 4.0 and 4.1: the first batch of a run has limits too

    @property
    def has_maximum(self) -> bool:
        """Whether an option limits the size of batches."""
        return any((self.events, self.events_per_partition, self.bytes))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How tasks read."""

    exclusive: bool
    prefetch: int
    receiver_timeout_s: float
    silent_max_s: float | None
    outage_s: float
    threads: int
    batch_rows: int
    batch_bytes: int
    properties: bool
    system_properties: bool
    metric_plugin: str


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
    outage_s: float
    partitions_per_task: int | None  # None: it depends on the size of the batch
    tasks_min: int | None
    refresh_s: float
    discovery: bool
    discovery_s: float
    limits: Limits
    reading: ReadOptions
    push_filters: bool
    feedback: bool
    store: str = field(repr=False)  # checkpointStore
    tenancy: TenancyOptions | None  # None: the query reads all partitions


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
    outage_s: float = 0.0


def read_source(
    given: Mapping[str, str],
    *,
    streaming: bool,
    now_ms: int,
    environment: Mapping[str, str] | None = None,
    hubs: Sequence[str] | None = None,
) -> SourceOptions:
    """The options of a query that reads; `hubs` are its hubs if it reads several."""
    values, case = OptionValues(given, READ, environment), STREAM if streaming else BATCH
    identity = read_identity(values)
    starts = values.positions("startingPositions", identity.hub, now_ms, hubs)
    ends = values.positions("endingPositions", identity.hub, now_ms, hubs)
    start = read_start(values, case, now_ms)
    end = values.position("endingPosition", now_ms)
    if streaming and (end is not None or ends):
        raise OptionError(
            "endingPosition and endingPositions are for batches: a stream has no end; leave them "
            "out"
        )
    # The default differs: a batch query must not evict the readers of a stream.
    exclusive = values.flag("useExclusiveReceiver", case)
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
        outage_s=values.duration("outageTimeout", case),
        partitions_per_task=values.count("partitionsPerTask"),
        tasks_min=tasks_min,
        refresh_s=values.duration("metadataRefreshInterval"),
        discovery=values.flag("dynamicPartitionDiscovery"),
        discovery_s=values.duration("partitionDiscoveryInterval"),
        limits=read_limits(values),
        reading=read_reading(values, exclusive, case),
        push_filters=read_push_filters(values, streaming=streaming),
        feedback=values.flag("taskFeedback"),
        store=values.text("checkpointStore"),
        tenancy=read_tenancy(values, streaming=streaming, exclusive=exclusive),
    )


def read_sink(
    given: Mapping[str, str],
    *,
    streaming: bool = False,
    environment: Mapping[str, str] | None = None,
) -> SinkOptions:
    """The options of a query that writes."""
    values = OptionValues(given, WRITE, environment)
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
        dedup=values.flag("dedupProperties", STREAM if streaming else BATCH),
        outage_s=values.duration("outageTimeout", STREAM if streaming else BATCH),
    )


# -- the hub --------------------------------------------------------------------------------------


def read_identity(values: OptionValues) -> HubIdentity:
    connection = read_connection(values)
    hub = values.text("name") or connection.hub
    if "," in hub:
        raise OptionError(
            f"name={hub} names several hubs: a query can read them, but writes to one"
        )
    if connection.hub and hub.lower() != connection.hub.lower():
        raise OptionError(
            f"the hub is named twice: name={hub}, and EntityPath={connection.hub} in "
            "connectionString; leave one of them out"
        )
    if not hub:
        raise OptionError(
            "the hub is not named: add EntityPath=HUB to connectionString, or set the option name"
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
    # A writer waits longer for a busy hub: a task that fails sends all of its rows again.
    attempts, backoff_s = values.count("retry.total", values.side), values.duration("retry.backoff")
    throttle_fails = values.side == WRITE and values.text("onThrottle") == "fail"
    return RetryOptions(
        0 if throttle_fails else attempts or 0,
        backoff_s,
        max(values.duration("retry.max"), backoff_s),
    )


def read_connection(values: OptionValues) -> ConnectionString:
    text, namespace = values.text("connectionString"), values.text("fullyQualifiedNamespace")
    if text and values.text("alias"):
        raise OptionError("alias and connectionString exclude each other; give one of them")
    if text and namespace:
        raise OptionError(
            "connectionString and fullyQualifiedNamespace exclude each other; give one of them"
        )
    text = text or connection_in_environment(values, required=not namespace)
    if text:
        if "=" not in text.rstrip("="):
            raise OptionError(
                "invalid connectionString: it has no Name=Value; if it was encrypted for the Scala "
                "connector, give the decrypted one: it is not logged or stored"
            )
        return parse_connection_string(text)
    if not namespace:
        raise OptionError(
            "no hub is given: set connectionString, alias, or fullyQualifiedNamespace with a "
            "credential. Spark does not pass the options of CREATE TABLE to a Python source: give "
            "them where the table is used, as in SELECT … FROM events WITH (alias = 'sensors') or "
            '.option("alias", "sensors")'
        )
    return connection_from_parts(values, namespace)


def connection_in_environment(values: OptionValues, *, required: bool) -> str:
    """The connection string in the environment of the driver; "" if there is none."""
    alias = values.text("alias").strip()
    if not alias:
        return values.environment.get(CONNECTION_VARIABLE, "") if required else ""
    if not required:
        raise OptionError("alias and fullyQualifiedNamespace exclude each other; give one of them")
    variable = alias_variable(alias)
    if not (text := values.environment.get(variable, "")):
        raise OptionError(
            f"alias={alias}: the environment of the driver has no variable {variable}; set it "
            f"before Spark starts, or pass spark.pumphouse.{alias}.connectionString to session()"
        )
    return text


def alias_variable(alias: str) -> str:
    """The name of the environment variable of an alias."""
    return f"{CONNECTION_VARIABLE}_{NOT_IN_VARIABLES.sub('_', alias).upper()}"


def connection_from_parts(values: OptionValues, namespace: str) -> ConnectionString:
    key_name, key = values.text("sharedAccessKeyName"), values.text("sharedAccessKey")
    if values.text("credential") == "none" and not (key_name and key):
        raise OptionError(
            "fullyQualifiedNamespace needs credential=default (or another), or "
            "sharedAccessKeyName and sharedAccessKey"
        )
    authority = namespace.removeprefix("sb://").strip("/")
    host, _, port = authority.partition(":")
    if port and not (port.isdecimal() and len(port) <= DIGITS_MAX):
        raise invalid("fullyQualifiedNamespace", namespace, "HOST or HOST:PORT")
    return ConnectionString(host, int(port or 5671), authority, key_name=key_name, key=key)


# -- reading --------------------------------------------------------------------------------------


def read_start(values: OptionValues, case: str, now_ms: int) -> Position:
    time = values.position("startingTimestamp", now_ms)
    if time is not None and values.text("startingPosition"):
        raise OptionError(
            "startingPosition and startingTimestamp exclude each other; give one of them"
        )
    default = LATEST if case == STREAM else EARLIEST
    return time or values.position("startingPosition", now_ms, case) or default


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
        first_batch=values.text("firstBatch") == "limited",
    )
    if not values.flag("taskFeedback") and (limits.bytes or limits.slow_adjustment):
        name = "maxBytesPerTrigger" if limits.bytes else "slowPartitionAdjustment"
        raise OptionError(f"{name} needs the reports of earlier tasks: set taskFeedback=true")
    return limits


def read_reading(values: OptionValues, exclusive: bool, case: str) -> ReadOptions:
    return ReadOptions(
        exclusive=exclusive,
        prefetch=values.count("prefetchCount") or 1,
        receiver_timeout_s=values.duration("receiverTimeout"),
        silent_max_s=values.duration("maxSilentTime") or None,
        outage_s=values.duration("outageTimeout", case),
        threads=values.count("threadPoolSize") or 1,
        batch_rows=values.count("arrowBatchRows") or 1,
        batch_bytes=values.size("arrowBatchBytes") or 1,
        properties=values.flag("includeProperties"),
        system_properties=values.flag("includeSystemProperties"),
        metric_plugin=read_plugin(values.text("metricPlugin")),
    )


def read_push_filters(values: OptionValues, *, streaming: bool) -> bool:
    push_filters = values.flag("pushFilters")
    if push_filters and streaming:
        raise OptionError("pushFilters is for batches: Spark passes no filters to a stream")
    return push_filters


def read_plugin(text: str) -> str:
    module, colon, function = text.strip().partition(":")
    if text and not (colon and module and function.isidentifier()):
        raise invalid("metricPlugin", text, "module:callable, such as my.metrics:on_read")
    return text.strip()


def is_range(first: str, last: str) -> bool:
    are_numbers = all(part.isdecimal() and len(part) <= DIGITS_MAX for part in (first, last))
    return are_numbers and int(first) <= int(last) < PARTITIONS_MAX


def read_partitions(text: str) -> tuple[str, ...]:
    """Partitions out of `0,1,5-7`."""
    partitions: list[str] = []
    for part in (part.strip() for part in text.strip("[] ").split(",")):
        first, dash, last = part.partition("-")
        if dash and is_range(first, last):
            partitions += map(str, range(int(first), int(last) + 1))
        elif part.strip('"').isdecimal():
            partitions.append(part.strip('"'))
        elif part:
            raise invalid("partitions", text, "numbers and ranges such as 0,1,5-7")
    return tuple(dict.fromkeys(partitions))
