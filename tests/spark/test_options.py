"""The options of a query: every mistake has an error that names the option and the way out."""

import pickle

import pytest

from pumphouse.client.bulk.blocking_connection import READ_BYTES_MIN
from pumphouse.client.bulk.ranges import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.catalogue import BY_NAME, CATALOGUE, REMOVED, RemovedOption
from pumphouse.spark.durations import read_duration, read_size
from pumphouse.spark.options import SourceOptions, read_partitions, read_sink, read_source

SECRET = "c2VjcmV0"
STRING = (
    f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey={SECRET};"
    "EntityPath=sensors"
)


def source(*, streaming: bool = True, **given: str) -> SourceOptions:
    return stream({"connectionString": STRING, **given}, streaming=streaming)


def stream(given: dict[str, str], streaming: bool = True) -> SourceOptions:
    return read_source(given, streaming=streaming, now_ms=0)


def with_string(given: dict[str, str]) -> SourceOptions:
    return stream({"connectionString": STRING, **given})


def test_defaults_of_a_stream() -> None:
    options = source()
    assert (options.identity.hub, options.group) == ("sensors", "$Default")
    assert (options.start, options.end, options.partitions) == (LATEST, LATEST, ())
    assert options.fail_on_data_loss
    assert options.reading.exclusive
    assert options.limits.events is None
    assert options.limits.delay_max_s == 900


def test_a_batch_starts_at_the_beginning() -> None:
    assert source(streaming=False).start == EARLIEST


@pytest.mark.parametrize(
    "name",
    [
        "maxEventsPerTrigger",
        "maxeventspertrigger",
        "eventhubs.maxEventsPerTrigger",
        "EventHubs.MAXEVENTSPERTRIGGER",
    ],
)
def test_names_in_any_case_with_and_without_the_prefix(name: str) -> None:
    assert with_string({name: "500"}).limits.events == 500


def test_the_same_said_twice_is_said_once() -> None:
    twice = {"maxEventsPerTrigger": "500", "eventhubs.MaxEventsPerTrigger": "500"}
    assert with_string(twice).limits.events == 500


def test_a_secret_that_is_given_twice_is_not_told() -> None:
    other = STRING.replace(SECRET, "aHVzaA==")
    with pytest.raises(OptionError, match="connectionString is given twice") as failed:
        with_string({"eventhubs.connectionString": other})
    assert SECRET not in str(failed.value)
    assert "aHVzaA==" not in str(failed.value)


def test_spark_has_options_of_its_own() -> None:
    source(checkpointLocation="somewhere", path="")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"maxEventsPerTriger": "1"}, "maxEventsPerTriger; did you mean maxEventsPerTrigger?"),
        ({"zzz": "1"}, "there is no option zzz; see the option table"),
        ({"maxInFlight": "4"}, "maxInFlight is for writing"),
        (
            {"maxEventsPerTrigger": "0"},
            "maxEventsPerTrigger is '0'; it must be a whole .* at least 1",
        ),
        ({"maxEventsPerTrigger": "-5"}, "maxEventsPerTrigger is '-5'"),
        ({"prefetchCount": "1000000"}, "prefetchCount is '1000000'.*at most 100,000"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes'; it is either true or false"),
        (
            {"unavailablePartitions": "ignore"},
            "unavailablePartitions is 'ignore'; it is one of fail, skip",
        ),
        ({"receiverTimeout": "soon"}, "receiverTimeout is 'soon', which is no length of time"),
        ({"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger is 'many', which is no size"),
        ({"startingPosition": "soon"}, "startingPosition is 'soon', which is no position"),
        ({"endingPosition": "latest"}, "a stream has no end"),
        ({"endingPositions": '{"0": 4}'}, "a stream has no end"),
        ({"partitions": "a-b"}, "partitions is 'a-b'; write numbers and ranges"),
        ({"minPartitions": "9"}, "set useExclusiveReceiver=false or leave minPartitions out"),
        (
            {"startingPosition": "earliest", "startingTimestamp": "2025-11-15T09:00:00Z"},
            "exclude each other",
        ),
        ({"fullyQualifiedNamespace": "ns"}, "exclude each other"),
        ({"credential": "magic"}, "credential is 'magic'; it is one of none, default"),
        ({"credential": "client_secret", "tenantId": "t"}, "needs the option clientId"),
        ({"maxRatePerPartition": "9"}, "it is for DStreams; use maxEventsPerPartition"),
        ({"receiverTimeout": "0"}, "receiverTimeout is '0'; it must be longer than nothing"),
        ({"arrowBatchBytes": "1k"}, "arrowBatchBytes is '1k'; it must be at least 65,536 bytes"),
        ({"arrowBatchRows": "40000"}, "at least 1 and at most 32,768"),
        ({"metricPlugin": "os.system"}, "metricPlugin is 'os.system'; write module:callable"),
        ({"retry.backoff": "0"}, "retry.backoff is '0'; it must be longer than nothing"),
        ({"consumerGroup": " "}, "consumerGroup is empty; name one"),
        (
            {"maxEventsPerTrigger": "1", "eventhubs.maxEventsPerTrigger": "2"},
            "maxEventsPerTrigger is given twice, with and without eventhubs., and differs",
        ),
        (
            {"maxBytesPerTrigger": "1m", "taskFeedback": "false"},
            "maxBytesPerTrigger needs what tasks tell .*taskFeedback=true",
        ),
        (
            {"slowPartitionAdjustment": "true", "taskFeedback": "false"},
            "slowPartitionAdjustment needs what tasks tell .*taskFeedback=true",
        ),
    ],
)
def test_mistakes(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why.replace("?", r"\?")):
        with_string(given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no hub to talk to: set connectionString"),
        ({"connectionString": "Endpoint=sb://ns"}, "has neither SharedAccessKey nor"),
        (
            {"connectionString": STRING.partition(";Entity")[0]},
            "no hub is named: add EntityPath=HUB",
        ),
        (
            {"connectionString": "rHQ0c2VjcmV0cmVjZWl2ZQ=="},
            "if it was encrypted for the Scala connector",
        ),
        ({"fullyQualifiedNamespace": "ns", "name": "h"}, "needs credential=default"),
        ({"fullyQualifiedNamespace": "ns:x", "name": "h", "credential": "default"}, "is no host"),
    ],
)
def test_no_hub(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why) as failed:
        read_source(given, streaming=True, now_ms=0)
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("gone", REMOVED, ids=lambda option: option.name)
def test_options_that_have_no_meaning_here(gone: RemovedOption) -> None:
    with pytest.raises(OptionError, match=f"option {gone.name} is not known here: ") as failed:
        with_string({gone.name: "x"})
    assert gone.instead in str(failed.value)


def test_a_hub_in_parts() -> None:
    parts = {
        "fullyQualifiedNamespace": "ns.servicebus.windows.net",
        "name": "sensors",
        "sharedAccessKeyName": "k",
        "sharedAccessKey": SECRET,
    }
    identity = read_source(parts, streaming=True, now_ms=0).identity
    assert (identity.connection.address, identity.hub) == (
        "ns.servicebus.windows.net:5671",
        "sensors",
    )
    assert identity.connection.key == SECRET
    assert identity.connection.tls


def test_secrets_are_in_no_repr_and_travel_to_the_executors() -> None:
    options = source(
        credential="client_secret",
        tenantId="t",
        clientId="c",
        clientSecret="hush-hush",
        checkpointStore="blob://hush-hush",
    )
    assert SECRET not in repr(options)
    assert "hush-hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        ("", ()),
        ("0", ("0",)),
        ("0,2, 5-7", ("0", "2", "5", "6", "7")),
        ('["0","1"]', ("0", "1")),
        ("1,1", ("1",)),
    ],
)
def test_a_subset_of_partitions(text: str, partitions: tuple[str, ...]) -> None:
    assert read_partitions(text) == partitions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("PT30S", 30),
        ("pt1h30m", 5400),
        ("P1DT1S", 86401),
        ("500", 0.5),
        ("15m", 900),
        ("2 hours", 7200),
        ("90 seconds", 90),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1 day", 86400),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert read_duration("receiverTimeout", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "P", "PT", "1 fortnight", "-5s", "5 5"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(OptionError, match=r"receiverTimeout is .* no length of time"):
        read_duration("receiverTimeout", text)


@pytest.mark.parametrize(
    ("text", "size"), [("16m", 16 << 20), ("512KB", 512 << 10), ("1GiB", 1 << 30), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_size("arrowBatchBytes", text) == size


def test_a_sink() -> None:
    sink = read_sink(
        {"eventhubs.connectionString": STRING, "partitionKey": "home", "maxInFlight": "2"}
    )
    assert (sink.key, sink.partition, sink.in_flight, sink.send_timeout_s) == ("home", None, 2, 60)
    with pytest.raises(OptionError, match="partitionId and partitionKey exclude each other"):
        read_sink({"connectionString": STRING, "partitionKey": "home", "partitionId": "0"})
    with pytest.raises(OptionError, match="consumerGroup is for reading"):
        read_sink({"connectionString": STRING, "consumerGroup": "g"})


def test_per_partition_positions_reach_the_options() -> None:
    options = source(startingPositions='{"0": {"seqNo": 4}}', startingPosition="earliest")
    assert options.starts == {"0": Position("sequence", "4", inclusive=True)}
    assert options.start == EARLIEST


def test_every_default_can_be_read() -> None:
    for option in CATALOGUE:
        if option.default and option.side != "write" and option.kind != "secret":
            with_string({option.name: option.default})


def test_a_batch_throws_nobody_out_unless_it_is_told_to() -> None:
    given = {"connectionString": STRING}
    assert read_source(given, streaming=True, now_ms=0).reading.exclusive
    assert not read_source(given, streaming=False, now_ms=0).reading.exclusive
    told = given | {"useExclusiveReceiver": "true"}
    assert read_source(told, streaming=False, now_ms=0).reading.exclusive


def test_who_writes_is_more_patient() -> None:
    given = {"connectionString": STRING}
    assert read_source(given, streaming=True, now_ms=0).identity.retry.attempts == 3
    assert read_sink(given).identity.retry.attempts == 8
    assert read_sink(given | {"retry.total": "1"}).identity.retry.attempts == 1
    assert read_sink(given | {"onThrottle": "fail"}).identity.retry.attempts == 0


def test_bounds_are_those_of_the_range_reader() -> None:
    assert BY_NAME["arrowbatchrows"].most == BATCH_ROWS_MAX
    assert BY_NAME["arrowbatchbytes"].least == READ_BYTES_MIN
    assert BY_NAME["arrowbatchbytes"].most == BATCH_BYTES_MAX
