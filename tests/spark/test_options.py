"""The options of a query: every error names the option and what to do."""

import pickle

import pytest

from pumphouse.client.bulk.blocking_connection import READ_BYTES_MIN
from pumphouse.client.bulk.ranges import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.catalogue import BY_NAME, CATALOGUE, FIXED, REMOVED
from pumphouse.spark.option_values import read_duration, read_size
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


def test_a_batch_query_starts_at_the_earliest_event() -> None:
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
def test_option_names_are_read_in_any_case_with_and_without_the_prefix(name: str) -> None:
    assert with_string({name: "500"}).limits.events == 500


def test_an_option_may_be_given_twice_with_the_same_value() -> None:
    twice = {"maxEventsPerTrigger": "500", "eventhubs.MaxEventsPerTrigger": "500"}
    assert with_string(twice).limits.events == 500


def test_a_secret_that_is_given_twice_is_not_in_the_error() -> None:
    other = STRING.replace(SECRET, "aHVzaA==")
    with pytest.raises(OptionError, match="connectionString is given twice") as failed:
        with_string({"eventhubs.connectionString": other})
    assert SECRET not in str(failed.value)
    assert "aHVzaA==" not in str(failed.value)


def test_options_of_spark_itself_are_accepted() -> None:
    source(checkpointLocation="somewhere", path="")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"maxEventsPerTriger": "1"}, "maxEventsPerTriger; did you mean maxEventsPerTrigger?"),
        ({"zzz": "1"}, "unknown option zzz; docs/spark.md lists the options"),
        ({"maxInFlight": "4"}, "maxInFlight is for writing"),
        (
            {"maxEventsPerTrigger": "0"},
            "invalid maxEventsPerTrigger '0': use a whole number, at least 1",
        ),
        ({"maxEventsPerTrigger": "-5"}, "invalid maxEventsPerTrigger '-5'"),
        ({"prefetchCount": "1000000"}, "invalid prefetchCount '1000000'.*at most 100,000"),
        ({"failOnDataLoss": "yes"}, "invalid failOnDataLoss 'yes': use true or false"),
        (
            {"unavailablePartitions": "ignore"},
            "invalid unavailablePartitions 'ignore': use one of fail, skip",
        ),
        ({"receiverTimeout": "soon"}, "invalid receiverTimeout 'soon': use a duration such as 30s"),
        (
            {"maxBytesPerTrigger": "many"},
            "invalid maxBytesPerTrigger 'many': use a size such as 16m",
        ),
        ({"startingPosition": "soon"}, "invalid startingPosition 'soon': use earliest"),
        ({"endingPosition": "latest"}, "a stream has no end"),
        ({"endingPositions": '{"0": 4}'}, "a stream has no end"),
        ({"partitions": "a-b"}, "invalid partitions 'a-b': use numbers and ranges"),
        ({"minPartitions": "9"}, "set useExclusiveReceiver=false or leave minPartitions out"),
        (
            {"startingPosition": "earliest", "startingTimestamp": "2025-11-15T09:00:00Z"},
            "exclude each other",
        ),
        ({"fullyQualifiedNamespace": "ns"}, "exclude each other"),
        ({"credential": "magic"}, "invalid credential 'magic': use one of none, default"),
        ({"credential": "client_secret", "tenantId": "t"}, "needs the option clientId"),
        ({"maxRatePerPartition": "9"}, "it is for DStreams; use maxEventsPerPartition"),
        ({"receiverTimeout": "0"}, "invalid receiverTimeout '0': use a duration above zero"),
        (
            {"arrowBatchBytes": "1k"},
            "invalid arrowBatchBytes '1k': use at least 65,536 and at most 67,108,864 bytes",
        ),
        ({"arrowBatchRows": "40000"}, "at least 1 and at most 32,768"),
        ({"metricPlugin": "os.system"}, "invalid metricPlugin 'os.system': use module:callable"),
        ({"name": "meters"}, "the hub is named twice: name=meters, and EntityPath=sensors in"),
        ({"retry.backoff": "0"}, "invalid retry.backoff '0': use a duration above zero"),
        ({"consumerGroup": " "}, "consumerGroup is empty; name one"),
        (
            {"maxEventsPerTrigger": "1", "eventhubs.maxEventsPerTrigger": "2"},
            "given twice, with and without eventhubs., and the values differ",
        ),
        (
            {"maxBytesPerTrigger": "1m", "taskFeedback": "false"},
            "maxBytesPerTrigger needs the reports of earlier tasks: set taskFeedback=true",
        ),
        (
            {"slowPartitionAdjustment": "true", "taskFeedback": "false"},
            "slowPartitionAdjustment needs the reports of earlier tasks: set taskFeedback=true",
        ),
    ],
)
def test_an_invalid_option_is_named(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason.replace("?", r"\?")):
        with_string(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxEventsPerTrigger", "9" * 19),
        ("maxEventsPerTrigger", "9" * 5000),
        ("maxBytesPerTrigger", "9" * 400),
        ("startingTimestamp", "9" * 5000),
        ("startingPosition", '{"a":' * 100_000),
        ("startingPositions", "[" * 100_000),
        ("partitions", "0-99999999999"),
    ],
)
def test_a_value_that_is_far_too_long_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"invalid {name} ") as failed:
        with_string({name: value})
    assert len(str(failed.value)) < 1000


SECRETS = (
    "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=hidden;",
    "endpoint = sb://ns/; shared access key = hidden",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hidden",
    "SharedAccessSignature sr=ns&sig=hidden",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "name",
    [
        "startingPosition", "startingPositions", "consumerGroup", "name", "path", "partitions",
        "maxEventsPerTrigger", "conectionString", "checkpointLocation", "eventhubs.host",
        "sharedAccessKey", "clientSecret", "eventhubs.sharedAccessKeyName", "tenantId",
    ],
)  # fmt: skip
def test_a_connection_string_in_another_option_is_not_shown(name: str, secret: str) -> None:
    with pytest.raises(OptionError, match=f"the option {name} contains a connection") as failed:
        with_string({name: secret})
    assert "hidden" not in str(failed.value)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_connection_string_as_the_name_of_an_option_is_not_shown(secret: str) -> None:
    with pytest.raises(OptionError, match="as the name of an option") as failed:
        with_string({secret: "x"})
    assert "hidden" not in str(failed.value)


def in_environment(given: dict[str, str], **environment: str) -> SourceOptions:
    return read_source(given, streaming=True, now_ms=0, environment=environment)


def test_the_connection_string_may_be_in_the_environment() -> None:
    assert in_environment({}, PUMPHOUSE_CONNECTION=STRING).identity.hub == "sensors"
    variables = {"PUMPHOUSE_CONNECTION_MY_HUB": STRING, "PUMPHOUSE_CONNECTION": "Endpoint=x"}
    assert in_environment({"alias": "my-hub"}, **variables).identity.hub == "sensors"
    given = {"connectionString": STRING}
    assert in_environment(given, PUMPHOUSE_CONNECTION="x").identity.hub == "sensors"
    with pytest.raises(OptionError, match="has no variable PUMPHOUSE_CONNECTION_OTHER"):
        in_environment({"alias": "other"}, PUMPHOUSE_CONNECTION=STRING)
    for excluded in (given, {"fullyQualifiedNamespace": "ns", "name": "h"}):
        with pytest.raises(OptionError, match=r"alias and .* exclude each other"):
            in_environment({"alias": "my-hub"} | excluded, **variables)


def test_a_hub_may_be_named_twice_with_one_name() -> None:
    assert with_string({"name": "Sensors"}).identity.hub == "Sensors"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "no hub is given: set connectionString"),
        ({"connectionString": "Endpoint=sb://ns"}, "has neither SharedAccessKey nor"),
        (
            {"connectionString": STRING.partition(";Entity")[0]},
            "the hub is not named: add EntityPath=HUB",
        ),
        (
            {"connectionString": "rHQ0c2VjcmV0cmVjZWl2ZQ=="},
            "if it was encrypted for the Scala connector",
        ),
        ({"fullyQualifiedNamespace": "ns", "name": "h"}, "needs credential=default"),
        (
            {"fullyQualifiedNamespace": "ns:x", "name": "h", "credential": "default"},
            "use HOST or HOST:PORT",
        ),
    ],
)
def test_a_query_without_a_usable_hub_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as failed:
        read_source(given, streaming=True, now_ms=0)
    assert SECRET not in str(failed.value)


def test_an_option_that_is_not_supported_names_its_replacement() -> None:
    for removed in REMOVED:
        with pytest.raises(OptionError, match=f"{removed.name} is not supported: ") as failed:
            with_string({removed.name: "x"})
        assert removed.instead in str(failed.value)


def test_a_hub_can_be_given_in_parts() -> None:
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


def test_secrets_are_pickled_and_not_in_the_repr() -> None:
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
def test_partitions_are_numbers_and_ranges(text: str, partitions: tuple[str, ...]) -> None:
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
def test_durations_have_several_forms(text: str, seconds: float) -> None:
    assert read_duration("receiverTimeout", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "P", "PT", "1 fortnight", "-5s", "5 5"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"invalid receiverTimeout .*: use a duration"):
        read_duration("receiverTimeout", text)


@pytest.mark.parametrize(
    ("text", "size"), [("16m", 16 << 20), ("512KB", 512 << 10), ("1GiB", 1 << 30), ("7", 7)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert read_size("arrowBatchBytes", text) == size


def test_the_options_of_a_sink() -> None:
    sink = read_sink(
        {"eventhubs.connectionString": STRING, "partitionKey": "home", "maxInFlight": "2"}
    )
    assert (sink.key, sink.partition, sink.in_flight, sink.send_timeout_s) == ("home", None, 2, 60)
    with pytest.raises(OptionError, match="partitionId and partitionKey exclude each other"):
        read_sink({"connectionString": STRING, "partitionKey": "home", "partitionId": "0"})
    with pytest.raises(OptionError, match="consumerGroup is for reading"):
        read_sink({"connectionString": STRING, "consumerGroup": "g"})


def test_a_streaming_query_names_its_rows_by_default() -> None:
    given = {"connectionString": STRING}
    assert read_sink(given, streaming=True).dedup
    assert not read_sink(given).dedup
    assert not read_sink({**given, "dedupProperties": "false"}, streaming=True).dedup


def test_per_partition_positions_reach_the_options() -> None:
    options = source(startingPositions='{"0": {"seqNo": 4}}', startingPosition="earliest")
    assert options.starts == {"0": Position("sequence", "4", inclusive=True)}
    assert options.start == EARLIEST


def test_every_default_is_valid() -> None:
    """Read with the options that it may need beside it."""
    for option in CATALOGUE:
        for case, default in {"": option.default, **option.default_for}.items():
            if default and option.side != "write":
                assignment = "fixed:4" if case == FIXED else "steady"
                shared = {"assignment": assignment, "store": "sqlite:///x.db"}
                with_string(
                    (shared if FIXED in option.default_for else {}) | {option.name: default}
                )


def test_a_batch_query_is_exclusive_only_on_request() -> None:
    given = {"connectionString": STRING}
    assert read_source(given, streaming=True, now_ms=0).reading.exclusive
    assert not read_source(given, streaming=False, now_ms=0).reading.exclusive
    exclusive = given | {"useExclusiveReceiver": "true"}
    assert read_source(exclusive, streaming=False, now_ms=0).reading.exclusive


def test_a_writer_retries_more_often_than_a_reader() -> None:
    given = {"connectionString": STRING}
    assert read_source(given, streaming=True, now_ms=0).identity.retry.attempts == 3
    assert read_sink(given).identity.retry.attempts == 8
    assert read_sink(given | {"retry.total": "1"}).identity.retry.attempts == 1
    assert read_sink(given | {"onThrottle": "fail"}).identity.retry.attempts == 0


def test_the_bounds_are_those_of_the_range_reader() -> None:
    assert BY_NAME["arrowbatchrows"].most == BATCH_ROWS_MAX
    assert BY_NAME["arrowbatchbytes"].least == READ_BYTES_MIN
    assert BY_NAME["arrowbatchbytes"].most == BATCH_BYTES_MAX
