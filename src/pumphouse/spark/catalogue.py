"""Every option of the source and the sink: its name, its default, and what it is for.

The table in docs/spark.md is compared with this one by a test. Names are those of Azure's Scala
connector where it has the option; they are read in any case, with or without `eventhubs.` before
them.

    options of a query -> CATALOGUE -> options.py
                          ^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.leases.strategies import strategy_forms

BOTH, READ, WRITE = "both", "read", "write"


@dataclass(frozen=True, slots=True)
class Option:
    """`kind` is how it is read: text, secret, flag, count, size, duration, position(s), words.

    `least` and `most` bound counts and sizes; a duration with a `least` must be above zero.
    """

    name: str
    kind: str
    default: str = ""  # "" is none
    side: str = READ
    help: str = ""
    words: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RemovedOption:
    """An option of the Scala connector that has no meaning here, and what to do instead."""

    name: str
    instead: str


CREDENTIALS = ("none", "default", "managed_identity", "client_secret", "environment", "azure_cli")

CATALOGUE = (
    # which hub, and as whom
    Option(
        "connectionString", "secret", side=BOTH, help="of the hub, or of a namespace with `name`"
    ),
    Option("fullyQualifiedNamespace", "text", side=BOTH, help="instead of a connection string"),
    Option("name", "text", side=BOTH, help="the hub, if the string has no EntityPath"),
    Option("sharedAccessKeyName", "text", side=BOTH, help="with `fullyQualifiedNamespace`"),
    Option("sharedAccessKey", "secret", side=BOTH, help="with `sharedAccessKeyName`"),
    Option("credential", "words", "none", BOTH, "an azure-identity credential", CREDENTIALS),
    Option("tenantId", "text", side=BOTH, help="for credential=client_secret"),
    Option("clientId", "text", side=BOTH, help="for client_secret and managed_identity"),
    Option("clientSecret", "secret", side=BOTH, help="for credential=client_secret"),
    Option("caFile", "text", side=BOTH, help="whom to trust, in place of the system's authorities"),
    Option(
        "transport", "words", "tcp", BOTH, "AMQP over TCP or over WebSocket", ("tcp", "websocket")
    ),
    Option("driver", "words", "native", BOTH, "who speaks to the hub", ("native", "azure")),
    # what to read
    Option("consumerGroup", "text", "$Default", help="whose readers these are"),
    Option("partitions", "text", help="only these, such as `0,1,5-7`; all by default"),
    Option("startingPosition", "position", help="latest for a stream, earliest for a batch"),
    Option("startingPositions", "positions", help="by partition, before `startingPosition`"),
    Option("startingTimestamp", "position", help="the same as startingPosition with a time"),
    Option("endingPosition", "position", help="of a batch; latest by default"),
    Option("endingPositions", "positions", help="by partition, before `endingPosition`"),
    Option(
        "failOnDataLoss", "flag", "true", help="fail if events left the hub before they were read"
    ),
    Option(
        "unavailablePartitions",
        "words",
        "fail",
        help="what to do about a partition that does not answer",
        words=("fail", "skip"),
    ),
    # how much at once
    Option(
        "maxEventsPerTrigger",
        "count",
        help="of all partitions; 10,000 for each by default",
        least=1,
    ),
    Option("maxEventsPerPartition", "count", help="of each partition", least=1),
    Option(
        "minEventsPerTrigger", "count", help="wait until so many wait, or maxTriggerDelay", least=1
    ),
    Option("maxTriggerDelay", "duration", "15m", help="how long minEventsPerTrigger may hold back"),
    Option("maxBytesPerTrigger", "size", help="about so many, by the mean size seen so far"),
    Option(
        "slowPartitionAdjustment", "flag", "false", help="take less from partitions that are slow"
    ),
    Option("maxAcceptableBatchReceiveTime", "duration", "30s", help="slower than this is slow"),
    # how it is read
    Option(
        "useExclusiveReceiver",
        "flag",
        help="with an epoch, so that nobody else reads; true for a stream, false for a batch",
    ),
    Option(
        "prefetchCount",
        "count",
        "2000",
        help="events asked for ahead with driver=azure; native asks for the whole range",
        least=1,
        most=100_000,
    ),
    Option(
        "receiverTimeout",
        "duration",
        "60s",
        help="to wait for an event that must be there",
        least=1,
    ),
    Option("operationTimeout", "duration", "300s", BOTH, "for a connection or a question", least=1),
    Option("maxSilentTime", "duration", help="connect anew if nothing comes for so long"),
    Option("partitionsPerTask", "count", "1", help="partitions that one task reads", least=1),
    Option(
        "minPartitions", "count", help="tasks at least; only without exclusive receivers", least=1
    ),
    Option(
        "threadPoolSize", "count", "16", help="partitions a task reads at the same time", least=1
    ),
    Option(
        "metadataRefreshInterval",
        "duration",
        "100ms",
        help="while nothing new comes, how often the hub is asked",
    ),
    Option("dynamicPartitionDiscovery", "flag", "true", help="notice new partitions"),
    Option("partitionDiscoveryInterval", "duration", "300s", help="how often they are looked for"),
    Option("includeProperties", "flag", "true", help="false leaves the column properties null"),
    Option("includeSystemProperties", "flag", "true", help="the same for systemProperties"),
    Option("arrowBatchRows", "count", "4000", help="rows of a record batch", least=1, most=32_768),
    Option(
        "arrowBatchBytes",
        "size",
        "16m",
        help="bytes of a record batch, about",
        least=64 << 10,
        most=64 << 20,
    ),
    Option(
        "taskFeedback", "flag", "true", help="tasks tell the planner what they read, over a socket"
    ),
    Option("metricPlugin", "text", help="module:callable, called with what each task measured"),
    Option(
        "checkpointStore",
        "secret",
        help="mirror committed batches to a store; the last one needs EventHubsLagListener",
    ),
    # sharing a consumer group
    Option(
        "assignment",
        "text",
        "all",
        help=f"which partitions are read: all, or a share by {strategy_forms(grabbing=False)}",
    ),
    Option("store", "secret", help="where the hosts of the group keep their leases"),
    Option("host", "text", help="our name there; made up once and journalled if it is not given"),
    Option("leaseDuration", "duration", help="30s; 60s with fixed:N", least=1),
    Option("renewInterval", "duration", help="10s; 20s with fixed:N", least=1),
    Option("cycleInterval", "duration", help="10s; 1s with fixed:N", least=1),
    Option(
        "handOff", "duration", help="what owners that we ask have to finish; what their lease has"
    ),
    Option(
        "tenantCheckpoints",
        "flag",
        "true",
        help="false: none is written, and what comes starts at startingPosition",
    ),
    # patience
    Option(
        "retry.total", "count", side=BOTH, help="attempts after the first; 3 to read, 8 to write"
    ),
    Option("retry.backoff", "duration", "0.8s", BOTH, "before the first of them", least=1),
    Option("retry.max", "duration", "120s", BOTH, "at most between two", least=1),
    # writing
    Option("partitionId", "text", side=WRITE, help="all rows to this partition"),
    Option("partitionKey", "text", side=WRITE, help="all rows with this key"),
    Option(
        "maxBatchBytes",
        "size",
        side=WRITE,
        help="of a message; the hub's own limit by default",
        least=1 << 10,
    ),
    Option(
        "maxInFlight",
        "count",
        "4",
        WRITE,
        "messages of a task not yet acknowledged",
        least=1,
        most=8,
    ),
    Option("sendTimeout", "duration", "60s", WRITE, "for an acknowledgement", least=1),
    Option("maxSendRate", "count", side=WRITE, help="events per second and task", least=1),
    Option(
        "onThrottle",
        "words",
        "retry",
        WRITE,
        "when the hub is busy; fail lets Spark decide",
        ("retry", "fail"),
    ),
    Option("dedupProperties", "flag", "false", WRITE, "write query, batch, partition and row"),
)

REMOVED = (
    RemovedOption("maxRatePerPartition", "it is for DStreams; use maxEventsPerPartition"),
    RemovedOption("maxRatesPerPartition", "it is for DStreams; use maxEventsPerPartition"),
    RemovedOption("throttlingStatusPlugin", "it is a JVM class; use metricPlugin=module:callable"),
    RemovedOption("useAadAuth", "use credential=default, managed_identity or client_secret"),
    RemovedOption("aadAuthCallback", "it is a JVM class; use credential=default or client_secret"),
    RemovedOption("AadAuthCallbackParams", "use tenantId, clientId and clientSecret"),
    RemovedOption("partitionPreferredLocationStrategy", "Spark places Python tasks as it likes"),
    RemovedOption("useSimulatedClient", "start an embedded hub: pumphouse.EmbeddedHub"),
)

BY_NAME = {option.name.lower(): option for option in CATALOGUE}
REMOVED_BY_NAME = {option.name.lower(): option for option in REMOVED}
