"""Every option of the source and the sink: its name, its default, and what it means.

This is the only list. Parsing, defaults and error texts come from it (option_values.py), and
`scripts/spark_options.py` writes the table of docs/spark.md from it. Names are those of Azure's
Scala connector where it has the option. Upper and lower case are the same, and the prefix
`eventhubs.` is optional.

    options of a query -> CATALOGUE -> OptionValues -> options.py
                          ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pumphouse.leases.strategies import strategy_forms

BOTH, READ, WRITE = "both", "read", "write"
SIDES = {BOTH: "both", READ: "reading", WRITE: "writing"}
# Cases in which an option has another default.
STREAM, BATCH, FIXED = "stream", "batch", "fixed:N"


@dataclass(frozen=True, slots=True)
class Option:
    """`kind` is how the value is parsed: text, secret, flag, count, size, duration, position,
    positions, timestamp, words.

    `least` and `most` bound counts and sizes; a duration with a `least` must be above zero.
    """

    name: str
    kind: str
    default: str = ""  # "": none
    side: str = READ
    help: str = ""
    words: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    default_for: Mapping[str, str] = field(default_factory=dict)  # case -> default

    def table_row(self) -> str:
        """Its line in the table of docs/spark.md."""
        words = f": {', '.join(self.words)}" if self.words else ""
        by_case = [f"{value} ({case})" for case, value in self.default_for.items()]
        default = ", ".join([self.default, *by_case] if self.default else by_case) or "-"
        return f"| `{self.name}` | {default} | {SIDES[self.side]} | {self.help}{words} |"


@dataclass(frozen=True, slots=True)
class RemovedOption:
    """An option of the Scala connector that is not supported, and what to do instead."""

    name: str
    instead: str

    def table_row(self) -> str:
        return f"| `{self.name}` | {self.instead} |"


CREDENTIALS = ("none", "default", "managed_identity", "client_secret", "environment", "azure_cli")

CATALOGUE = (
    # the hub and the identity
    Option(
        "connectionString",
        "secret",
        side=BOTH,
        help="connection string of the hub, or of its namespace if `name` is given",
    ),
    Option(
        "alias",
        "text",
        side=BOTH,
        help="the connection string is in the variable PUMPHOUSE_CONNECTION_ALIAS of the driver's "
        "environment, see [sql.md](sql.md#without-secrets)",
    ),
    Option(
        "fullyQualifiedNamespace",
        "text",
        side=BOTH,
        help="host name of the namespace, instead of a connection string",
    ),
    Option(
        "name",
        "text",
        side=BOTH,
        help="the hub, if connectionString has no EntityPath; for reading also several: `a,b`, see "
        "[Several hubs](#several-hubs)",
    ),
    Option(
        "namePattern",
        "text",
        help="read the hubs whose whole name matches this regular expression, see "
        "[Several hubs](#several-hubs)",
    ),
    Option(
        "sharedAccessKeyName",
        "text",
        side=BOTH,
        help="name of the access rule, with `fullyQualifiedNamespace`",
    ),
    Option(
        "sharedAccessKey",
        "secret",
        side=BOTH,
        help="key of the access rule, with `sharedAccessKeyName`",
    ),
    Option("credential", "words", "none", BOTH, "an azure-identity credential", CREDENTIALS),
    Option("tenantId", "text", side=BOTH, help="for credential=client_secret"),
    Option("clientId", "text", side=BOTH, help="for client_secret and managed_identity"),
    Option("clientSecret", "secret", side=BOTH, help="for credential=client_secret"),
    Option(
        "caFile",
        "text",
        side=BOTH,
        help="a file of certificate authorities, in place of the system's",
    ),
    Option(
        "transport", "words", "tcp", BOTH, "AMQP over TCP or over WebSocket", ("tcp", "websocket")
    ),
    Option("driver", "words", "native", BOTH, "the client library", ("native", "azure")),
    # what to read
    Option("consumerGroup", "text", "$Default", help="the consumer group that reads"),
    Option("partitions", "text", help="the partitions to read, such as `0,1,5-7`; all by default"),
    Option(
        "startingPosition",
        "position",
        help="where to start",
        default_for={STREAM: "latest", BATCH: "earliest"},
    ),
    Option(
        "startingPositions",
        "positions",
        help="where to start, by partition; the others use `startingPosition`",
    ),
    Option(
        "startingTimestamp",
        "timestamp",
        help="startingPosition as a time: ISO text, or milliseconds since 1970",
    ),
    Option("endingPosition", "position", help="where a batch query ends; latest by default"),
    Option(
        "endingPositions",
        "positions",
        help="where a batch query ends, by partition; the others use `endingPosition`",
    ),
    Option(
        "failOnDataLoss",
        "flag",
        "true",
        help="fail if retention removed events before they were read",
    ),
    Option(
        "unavailablePartitions",
        "words",
        "fail",
        help="what to do about a partition that does not respond, or returns no events",
        words=("fail", "skip"),
    ),
    # how much at once
    Option(
        "maxEventsPerTrigger",
        "count",
        help="the most events of a batch; by default 10,000 for each partition, and more while "
        "batches are quick, see [Size of batches](#size-of-batches)",
        least=1,
    ),
    Option(
        "maxEventsPerPartition",
        "count",
        help="the most events of each partition in a batch",
        least=1,
    ),
    Option(
        "minEventsPerTrigger",
        "count",
        help="delay a batch until this many events wait, or for maxTriggerDelay",
        least=1,
    ),
    Option("maxTriggerDelay", "duration", "15m", help="the longest delay by minEventsPerTrigger"),
    Option(
        "maxBytesPerTrigger",
        "size",
        help="the most bytes of a batch; estimated from the mean size of events",
    ),
    Option(
        "firstBatch",
        "words",
        "everything",
        help="whether limits apply to the first batch of a run, in Spark 4.0 and 4.1: see "
        "[Versions](#versions-of-spark)",
        words=("everything", "limited"),
    ),
    Option("slowPartitionAdjustment", "flag", "false", help="take fewer events of slow partitions"),
    Option(
        "maxAcceptableBatchReceiveTime",
        "duration",
        "30s",
        help="a partition is slow if reading takes longer than this, and longer per event than for "
        "other partitions",
    ),
    # how tasks read
    Option(
        "useExclusiveReceiver",
        "flag",
        help="read with an epoch, which excludes other readers",
        default_for={STREAM: "true", BATCH: "false"},
    ),
    Option(
        "prefetchCount",
        "count",
        "2000",
        help="events requested ahead with driver=azure; native requests the whole range",
        least=1,
        most=100_000,
    ),
    Option(
        "receiverTimeout",
        "duration",
        "60s",
        help="the longest wait for an event that must exist",
        least=1,
    ),
    Option(
        "operationTimeout",
        "duration",
        "300s",
        BOTH,
        "the longest wait for a connection or a request",
        least=1,
    ),
    Option(
        "outageTimeout",
        "duration",
        side=BOTH,
        help="how long to wait for a hub that cannot be reached, before the query fails",
        default_for={STREAM: "10m", BATCH: "0s"},
    ),
    Option("maxSilentTime", "duration", help="reconnect if no event arrives for this time"),
    Option(
        "partitionsPerTask",
        "count",
        help="partitions that one task reads; if not set, 1, or up to 8 in a batch of few events "
        "(with an assignment, always 1)",
        least=1,
    ),
    Option(
        "minPartitions",
        "count",
        help="the fewest tasks; only with useExclusiveReceiver=false",
        least=1,
    ),
    Option(
        "threadPoolSize", "count", "16", help="partitions a task reads at the same time", least=1
    ),
    Option(
        "metadataRefreshInterval",
        "duration",
        "100ms",
        help="how often the driver requests the newest position while no event arrives",
    ),
    Option("dynamicPartitionDiscovery", "flag", "true", help="read new partitions"),
    Option(
        "partitionDiscoveryInterval",
        "duration",
        "300s",
        help="how often the driver checks for new partitions",
    ),
    Option("includeProperties", "flag", "true", help="false: the column properties is null"),
    Option(
        "includeSystemProperties", "flag", "true", help="false: the column systemProperties is null"
    ),
    Option(
        "pushFilters",
        "flag",
        "false",
        help="true: filters of a batch query narrow what is read; only for a frame or a table that "
        "one query uses, see [Filters](#filters)",
    ),
    Option("arrowBatchRows", "count", "4000", help="rows of a record batch", least=1, most=32_768),
    Option(
        "arrowBatchBytes",
        "size",
        "16m",
        help="approximate bytes of a record batch",
        least=64 << 10,
        most=64 << 20,
    ),
    Option(
        "taskFeedback",
        "flag",
        "true",
        help="tasks report what they read to the driver, over a socket",
    ),
    Option(
        "metricPlugin", "text", help="module:callable, called with the measurements of each task"
    ),
    Option(
        "checkpointStore",
        "secret",
        help="store that gets a copy of the positions of committed batches, see [Lag](#lag)",
    ),
    # sharing a consumer group
    Option(
        "assignment",
        "text",
        "all",
        help=f"all partitions, or a share by {strategy_forms(grabbing=False)}",
    ),
    Option("store", "secret", help="the store of the leases, for all hosts of the group"),
    Option(
        "host",
        "text",
        help="the name of this host in the store; by default generated and kept across restarts",
    ),
    Option(
        "leaseDuration",
        "duration",
        "30s",
        help="how long an owner keeps a partition without renewal",
        least=1,
        default_for={FIXED: "60s"},
    ),
    Option(
        "renewInterval",
        "duration",
        "10s",
        help="how often leases are renewed",
        least=1,
        default_for={FIXED: "20s"},
    ),
    Option(
        "cycleInterval",
        "duration",
        "10s",
        help="how often partitions are balanced",
        least=1,
        default_for={FIXED: "1s"},
    ),
    Option(
        "handOff",
        "duration",
        help="how long an owner may take to hand over; by default until its lease expires",
    ),
    Option(
        "tenantCheckpoints",
        "flag",
        "true",
        help="false: neither use nor move the checkpoints of the group, see [Start]"
        "(#a-query-as-a-tenant)",
    ),
    # retries
    Option(
        "retry.total",
        "count",
        side=BOTH,
        help="number of retries",
        default_for={READ: "3", WRITE: "8"},
    ),
    Option("retry.backoff", "duration", "0.8s", BOTH, "the delay before the first retry", least=1),
    Option(
        "retry.max", "duration", "120s", BOTH, "the longest delay between two attempts", least=1
    ),
    # writing
    Option("partitionId", "text", side=WRITE, help="the partition for all rows"),
    Option("partitionKey", "text", side=WRITE, help="the key of all rows"),
    Option(
        "maxBatchBytes",
        "size",
        side=WRITE,
        help="the largest message; the limit of the hub by default",
        least=1 << 10,
    ),
    Option(
        "maxInFlight",
        "count",
        "4",
        WRITE,
        "the most unacknowledged messages of a task",
        least=1,
        most=8,
    ),
    Option(
        "sendTimeout", "duration", "60s", WRITE, "the longest wait for an acknowledgement", least=1
    ),
    Option(
        "maxSendRate", "count", side=WRITE, help="the most events per second of each task", least=1
    ),
    Option(
        "onThrottle",
        "words",
        "retry",
        WRITE,
        "what a task does if the hub throttles (Spark repeats a task that fails)",
        ("retry", "fail"),
    ),
    Option(
        "dedupProperties",
        "flag",
        side=WRITE,
        help="add query, batch, task and row as properties, for drop_repeats, see "
        "[Exactly once](#exactly-once-from-hub-to-hub)",
        default_for={STREAM: "true", BATCH: "false"},
    ),
)

REMOVED = (
    RemovedOption("maxRatePerPartition", "it is for DStreams; use maxEventsPerPartition"),
    RemovedOption("maxRatesPerPartition", "it is for DStreams; use maxEventsPerPartition"),
    RemovedOption("throttlingStatusPlugin", "it is a JVM class; use metricPlugin=module:callable"),
    RemovedOption("useAadAuth", "use credential=default, managed_identity or client_secret"),
    RemovedOption("aadAuthCallback", "it is a JVM class; use credential=default or client_secret"),
    RemovedOption("AadAuthCallbackParams", "use tenantId, clientId and clientSecret"),
    RemovedOption("partitionPreferredLocationStrategy", "Spark decides where Python tasks run"),
    RemovedOption("useSimulatedClient", "start an embedded hub: pumphouse.EmbeddedHub"),
)

BY_NAME = {option.name.lower(): option for option in CATALOGUE}
REMOVED_BY_NAME = {option.name.lower(): option for option in REMOVED}
