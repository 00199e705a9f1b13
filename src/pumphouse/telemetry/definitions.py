"""Every metric: its name, kind, unit, labels and meaning.

Names with dots follow OpenTelemetry's messaging conventions. Prometheus gets them with underscores,
the unit and, for counters, `_total`: `messaging.client.sent.messages` becomes
`messaging_client_sent_messages_total`.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, HISTOGRAM, GAUGE = "counter", "histogram", "gauge"

# The bounds of the conventions, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Hand-overs, cycles and batches take from milliseconds to minutes.
LONG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# Writes to memory and disk take from microseconds to seconds.
SHORT_SECONDS = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The values of `labels` are bounded: no event keys, no home ids."""

    name: str
    kind: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {}  # by name


def define(
    name: str,
    kind: str,
    unit: str,
    meaning: str,
    labels: str = "",
    buckets: tuple[float, ...] = (),
) -> Metric:
    metric = Metric(name, kind, unit, meaning, tuple(labels.split()), buckets)
    assert name not in METRICS
    METRICS[name] = metric
    return metric


# -- clients and processors: OpenTelemetry's messaging conventions --------------------------------

OPERATION = (
    "messaging.system messaging.operation.name messaging.operation.type "
    "messaging.destination.name messaging.destination.partition.id "
    "messaging.consumer.group.name error.type"
)

OPERATION_DURATION = define(
    "messaging.client.operation.duration",
    HISTOGRAM,
    "s",
    "Duration of a send, receive or checkpoint call.",
    OPERATION,
    SECONDS,
)
SENT_MESSAGES = define(
    "messaging.client.sent.messages",
    COUNTER,
    "{message}",
    "Events that a client has sent; those of a failed send have an error.type.",
    OPERATION,
)
CONSUMED_MESSAGES = define(
    "messaging.client.consumed.messages",
    COUNTER,
    "{message}",
    "Events that were delivered to the application.",
    OPERATION,
)
PROCESS_DURATION = define(
    "messaging.process.duration",
    HISTOGRAM,
    "s",
    "Duration of a handler call for a batch.",
    OPERATION,
    SECONDS,
)

# -- processors -----------------------------------------------------------------------------------

HOST = "eventhub group host"

OWNED_PARTITIONS = define(
    "pumphouse.processor.owned_partitions",
    GAUGE,
    "",
    "Partitions that this host owns.",
    HOST,
)
LEASE_OPERATIONS = define(
    "pumphouse.processor.lease_operations",
    COUNTER,
    "",
    "Claims, renewals, requests, raised epochs, releases and losses of partitions; outcome is ok, "
    "lost or failed.",
    f"{HOST} op outcome",
)
HANDOFFS = define(
    "pumphouse.processor.handoffs",
    COUNTER,
    "",
    "Partitions that this host has given up for another host; outcome is clean or lost.",
    f"{HOST} outcome",
)
HANDOFF_SECONDS = define(
    "pumphouse.processor.handoff",
    HISTOGRAM,
    "s",
    "From the request of another host until the partition was given up.",
    HOST,
    LONG_SECONDS,
)
CYCLE_SECONDS = define(
    "pumphouse.processor.cycle",
    HISTOGRAM,
    "s",
    "Duration of a cycle: list, decide, claim, request and renew.",
    HOST,
    LONG_SECONDS,
)
STORE_REQUEST_SECONDS = define(
    "pumphouse.processor.store_request",
    HISTOGRAM,
    "s",
    "Duration of a request to the checkpoint store; outcome is ok, unknown, cancelled or the name "
    "of the error.",
    f"{HOST} op outcome",
    SECONDS,
)
CHECKPOINT_AGE = define(
    "pumphouse.processor.checkpoint_age",
    GAUGE,
    "s",
    "Time since the last checkpoint of an owned partition, or since the first handled event after "
    "it; 0 if all handled events are in the checkpoint.",
    f"{HOST} partition",
)
POISON_EVENTS = define(
    "pumphouse.processor.poison_events",
    COUNTER,
    "",
    "Events that failed in every attempt of the handler; end is skip, dead_letter or stop.",
    f"{HOST} end",
)
STUCK_HANDLERS = define(
    "pumphouse.processor.stuck_handlers",
    GAUGE,
    "",
    "Partitions whose handler has not returned within handler_timeout_s.",
    HOST,
)
QUEUE_EVENTS = define(
    "pumphouse.processor.queue_events",
    GAUGE,
    "",
    "Events of an owned partition that are received and not yet delivered to the handler.",
    f"{HOST} partition",
)
EXPIRED_EVENTS = define(
    "pumphouse.processor.expired_events",
    COUNTER,
    "",
    "Events that the hub deleted before this host read them.",
    HOST,
)

# -- consumer groups: the names of kafka-lag-exporter ---------------------------------------------

GROUP = "namespace eventhub group"
OWNED = f"{GROUP} partition owner"

GROUP_OFFSET = define(
    "eventhub_consumergroup_group_offset",
    GAUGE,
    "",
    "Sequence number of the checkpoint.",
    OWNED,
)
GROUP_LAG = define(
    "eventhub_consumergroup_group_lag",
    GAUGE,
    "",
    "Events after the checkpoint.",
    OWNED,
)
GROUP_LAG_SECONDS = define(
    "eventhub_consumergroup_group_lag_seconds",
    GAUGE,
    "",
    "Time since the first event after the checkpoint was enqueued; 0 without lag.",
    OWNED,
)
GROUP_MAX_LAG = define(
    "eventhub_consumergroup_group_max_lag",
    GAUGE,
    "",
    "Largest lag of a partition of the group.",
    GROUP,
)
GROUP_MAX_LAG_SECONDS = define(
    "eventhub_consumergroup_group_max_lag_seconds",
    GAUGE,
    "",
    "Largest lag in seconds of a partition of the group.",
    GROUP,
)
GROUP_SUM_LAG = define(
    "eventhub_consumergroup_group_sum_lag",
    GAUGE,
    "",
    "Sum of the lags of the group.",
    GROUP,
)
GROUP_STATUS = define(
    "eventhub_consumergroup_status",
    GAUGE,
    "",
    "1 ok, 2 behind, 3 no owner, data lost or checkpoint ahead of the hub, 4 stopped by an event, "
    "5 stuck.",
    OWNED,
)
LATEST_OFFSET = define(
    "eventhub_partition_latest_offset",
    GAUGE,
    "",
    "Sequence number of the newest event; -1 before the first event.",
    "namespace eventhub partition",
)
EARLIEST_OFFSET = define(
    "eventhub_partition_earliest_offset",
    GAUGE,
    "",
    "Sequence number of the oldest stored event; one above the newest if none is stored.",
    "namespace eventhub partition",
)
POLL_FAILURES = define(
    "eventhub_consumergroup_poll_failures",
    COUNTER,
    "",
    "Polls of the exporter in which the hub or the store (label part) could not be read.",
    "namespace eventhub part",
)
POLL_SECONDS = define(
    "eventhub_consumergroup_poll",
    HISTOGRAM,
    "s",
    "Duration of a poll of the exporter.",
    "namespace eventhub",
    SECONDS,
)

# -- the hub --------------------------------------------------------------------------------------

PARTITION = "hub partition"

RECEIVED_EVENTS = define(
    "pumphouse.hub.received_events", COUNTER, "", "Events that producers have sent.", PARTITION
)
RECEIVED_BYTES = define(
    "pumphouse.hub.received_bytes", COUNTER, "", "Bytes of these events.", PARTITION
)
SENT_EVENTS = define(
    "pumphouse.hub.sent_events", COUNTER, "", "Events that were sent to readers.", PARTITION
)
SENT_BYTES = define("pumphouse.hub.sent_bytes", COUNTER, "", "Bytes of these events.", PARTITION)
REJECTED_SENDS = define(
    "pumphouse.hub.rejected_sends",
    COUNTER,
    "",
    "Sends that the hub refused, by AMQP error condition.",
    "hub condition",
)
THROTTLED = define(
    "pumphouse.hub.throttled", COUNTER, "", "Operations refused or delayed by a quota.", "hub"
)
CONNECTIONS = define(
    "pumphouse.hub.connections", GAUGE, "", "Open connections by listener.", "listener"
)
READERS = define("pumphouse.hub.readers", GAUGE, "", "Attached readers.", "hub group")
EPOCH_EVICTIONS = define(
    "pumphouse.hub.epoch_evictions",
    COUNTER,
    "",
    "Readers that a reader with a higher epoch has evicted.",
    "hub group",
)
APPEND_SECONDS = define(
    "pumphouse.hub.append",
    HISTOGRAM,
    "s",
    "From the receipt of events until they are written.",
    "hub",
    SHORT_SECONDS,
)
SYNC_SECONDS = define(
    "pumphouse.hub.sync", HISTOGRAM, "s", "Duration of a sync to disk.", "", SHORT_SECONDS
)
LOG_BYTES = define("pumphouse.hub.log_bytes", GAUGE, "", "Bytes that a hub stores.", "hub")
BEGIN_SEQUENCE = define(
    "pumphouse.hub.partition_begin_sequence",
    GAUGE,
    "",
    "Sequence number of the oldest event.",
    PARTITION,
)
END_SEQUENCE = define(
    "pumphouse.hub.partition_end_sequence",
    GAUGE,
    "",
    "Sequence number of the newest event.",
    PARTITION,
)

# -- Spark ----------------------------------------------------------------------------------------

SPARK_LAG_EVENTS = define(
    "pumphouse.spark.lag_events",
    GAUGE,
    "",
    "Events of a partition that the last batch of a query left for the next one.",
    "query eventhub partition",
)
SPARK_LAG_SECONDS = define(
    "pumphouse.spark.lag",
    GAUGE,
    "s",
    "Time between the last event of the last batch of a query and the newest one, when the batch "
    "was planned.",
    "query eventhub partition",
)
SPARK_BATCH_SECONDS = define(
    "pumphouse.spark.batch",
    HISTOGRAM,
    "s",
    "Duration of a phase of a batch, as Spark reports it.",
    "query phase",
    LONG_SECONDS,
)
SPARK_INPUT_ROWS = define(
    "pumphouse.spark.input_rows", COUNTER, "", "Rows that a query has read.", "query"
)
SPARK_WATERMARK_DELAY = define(
    "pumphouse.spark.watermark_delay",
    GAUGE,
    "s",
    "How far the watermark of a query is behind the clock.",
    "query",
)
SPARK_STATE_ROWS = define(
    "pumphouse.spark.state_rows", GAUGE, "", "Rows in the state of a query.", "query operator"
)

# -- homes ----------------------------------------------------------------------------------------

READINGS = define(
    "homes.readings",
    COUNTER,
    "",
    "Valid readings that the stage sift has read from the hub sensors, with duplicates, by kind of "
    "sensor.",
    "kind",
)
ALERTS = define(
    "homes.alerts",
    COUNTER,
    "",
    "Alerts that the stage record has stored in the database, each once, by kind of alert.",
    "kind",
)
LATE_READINGS = define(
    "homes.late_readings",
    COUNTER,
    "",
    "Valid readings that reached the hub sensors more than two minutes after their time. They are "
    "processed as usual.",
)
MALFORMED_READINGS = define(
    "homes.malformed_readings",
    COUNTER,
    "",
    "Records of the hub sensors that are not valid readings. The stage sift sends them to the hub "
    "deadletter.",
)
SENT_TO_ALERT = define(
    "homes.sent_to_alert",
    HISTOGRAM,
    "s",
    "From the time of the reading that raised an alert until the alert was in the hub alerts, of "
    "each alert in the database. A sensor sends a reading at its time, unless it is late.",
    "",
    LONG_SECONDS,
)
SENT_TO_ROW = define(
    "homes.sent_to_row",
    HISTOGRAM,
    "s",
    "From the time of a reading until its row was committed to the database, of each activity.",
    "",
    LONG_SECONDS,
)
