"""The stage `sift` on a local Spark: it agrees with the schema, and sends each record once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import BadRecord, ConnectionFailed
from pumphouse.events import Event
from pumphouse.homes import schema
from pumphouse.homes.exact_validation import validate_body
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import Reading, decode_reading, encode_activity, encode_reading
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.sift.buckets import buckets_in
from pumphouse.homes.sift.delivery import OutgoingEvents, delivery_to
from pumphouse.homes.sift.sifter import Deliver
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.stage_metrics import StageMetricsListener
from pumphouse.telemetry.trace_context import DIAGNOSTIC_ID, TRACEPARENT, TRACESTATE
from tests.homes.kinds.kinds_files import ALL_RULES, kinds_of
from tests.homes.streams import TO_THE_END, finish, put, read_all
from tests.spark.support.waiting import until
from tests.telemetry.page import Series, recording, scrape, series

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("homes"), pytest.mark.timeout(600)]

NOW = 1_792_031_580_000
AHEAD_MS, LATE_MS = 3_600_000, 120_000
SETTINGS = sift.SiftSettings(partitions_per_task=1)
READING = Reading("h000042", "door", 29_867_193, NOW, 1, NOW - 9_000, "away", 87)
GOOD = encode_reading(READING)
CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def changed(**keys: Any) -> bytes:
    return json.dumps(json.loads(GOOD) | keys).encode()


def without(key: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(GOOD).items() if k != key}).encode()


ABSURD = (2**53 - 1, 2**53, 2**63 - 1, -(2**63), 2**63, 10**400)
ODD_VALUES = (None, "x", "5", 5, -1, 1.5, 1.0, True, [1], {"a": 1})
BODIES = [
    GOOD, b"", b"null", b"3", b"\xff\xfe", b"[" + GOOD + b"]", GOOD + b" zz", GOOD + GOOD,
    GOOD[:-5], b" " + GOOD + b"\r\n", GOOD.replace(b'"value":1', b'"value":NaN'),
    GOOD.replace(b'"', b"'"), GOOD.replace(b"{", b'{"more":{"a":[1,2]},'),
    *(without(key) for key in json.loads(GOOD)),
    *(changed(**{key: odd}) for key in json.loads(GOOD) if key != "at" for odd in ODD_VALUES),
    *(changed(at=odd) for odd in ODD_VALUES if type(odd) is not int),
    *(changed(value=value, fault=fault) for value in (None, 1) for fault in ("}{", 5, None)),
    *(changed(**{key: odd}) for key in ("seq", "at", "since", "value") for odd in ABSURD),
    GOOD.replace(b'"value":1', b'"value":1e999'), changed(value=None, fault="\ud800"),
    GOOD.replace(b"{", b'{"note":"\xff",'),
]  # fmt: skip

QUIET = replace(READING, value=0, since=NOW - 3_600_000, seq=3)
RELEVANCE = [
    READING, QUIET, replace(QUIET, seq=8), replace(QUIET, seq=9), replace(QUIET, battery=15),
    replace(QUIET, battery=16), replace(QUIET, value=1), replace(QUIET, since=NOW - 60_000),
    replace(QUIET, since=NOW - 59_999), replace(QUIET, since=NOW + 1),
    replace(QUIET, sensor="smoke", value=59.9), replace(QUIET, sensor="smoke", value=60),
    replace(QUIET, sensor="temperature", value=21.5), replace(QUIET, value=None, fault="stuck"),
    replace(QUIET, home="h999999", value=7), replace(QUIET, sensor="motion", value=12),
]  # fmt: skip


def validated(
    spark: SparkSession, bodies: Sequence[bytes], kinds: Kinds = DEFAULT
) -> dict[int, tuple[bool, bytes]]:
    """The bodies that the column validation passes on, by index: whether it is valid, its body."""
    from pyspark.sql import functions as f

    from pumphouse.homes.validation import select_relevant, validate_columns

    rows = [(body, "0", index) for index, body in enumerate(bodies)]
    frame = spark.createDataFrame(rows, "body binary, partition string, sequenceNumber long")
    events = frame.withColumn("enqueuedTime", f.timestamp_millis(f.lit(NOW + 500)))
    events = events.withColumn("properties", f.lit(None).cast("map<string, string>"))
    relevant = select_relevant(validate_columns(events, AHEAD_MS, LATE_MS, kinds), kinds).collect()
    return {row.sequence: (row.valid, bytes(row.body)) for row in relevant}


def test_the_column_validation_agrees_with_the_exact_one(spark: SparkSession) -> None:
    faults = ReadingFaults(faults=0.01, malformed=0.02)
    batch = HomeSimulator(100, 3, reading_faults=faults).minute(29_867_193)
    bodies = [*BODIES, *map(encode_reading, RELEVANCE), *batch.bodies()]
    relevant = validated(spark, bodies)
    for index, body in enumerate(bodies):
        exact = validate_body(body, NOW + 500, AHEAD_MS, LATE_MS)
        valid, text = relevant.get(index, (True, b""))
        if not valid:
            assert text == body
        else:
            assert exact.problem is None, body
            # Unknown keys are kept unchanged.
            kept = json.loads(text or b"{}")
            assert kept | json.loads(exact.body or b"{}") == kept, body
            assert bool(text) == (exact.body is not None), body
    valid_count = sum(relevant.get(index, (True,))[0] for index in range(len(bodies)))
    assert len(bodies) * 0.7 < valid_count < len(bodies) - 50
    activities = {text for valid, text in relevant.values() if valid}
    assert encode_activity(schema.Activity(READING, "change", "Kiln Lane")) in activities


def test_the_validations_agree_on_the_kinds_of_a_file(spark: SparkSession) -> None:
    kinds = kinds_of(ALL_RULES)
    values = (-1, 0, 1, 4.9, 5, 49.9, 50, 299, 300, 5000, 5000.1)
    bodies = [
        encode_reading(replace(QUIET, sensor=kind, value=value))
        for kind in (*kinds.names, "toaster")
        for value in values
    ]
    relevant = validated(spark, bodies, kinds)
    exact = [validate_body(body, NOW + 500, AHEAD_MS, LATE_MS, kinds) for body in bodies]
    for index, result in enumerate(exact):
        valid, text = relevant.get(index, (True, b""))
        assert valid == (result.problem is None), bodies[index]
        if valid:
            assert (text or None) == result.body
    reasons = Counter(str(result.problem).partition(":")[0] for result in exact)
    assert (reasons["bad-value"], reasons["unknown-sensor"]) == (2, len(values))


def sift_all(
    spark: SparkSession,
    namespace: HomesNamespace,
    folder: Path,
    settings: sift.SiftSettings = SETTINGS,
) -> sift.Counts:
    query = finish(lambda: sift.start(spark, namespace, str(folder), settings, TO_THE_END))
    return total(map(sift.counts, query.recentProgress))


def total(parts: Iterable[sift.Counts]) -> sift.Counts:
    """The counts of several batches together."""
    names = ("readings", "activities", "dropped", "duplicates", "malformed", "late")
    sums, reasons, kinds = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        sums.update({name: getattr(part, name) for name in names})
        reasons.update(part.reasons)
        kinds.update(part.kinds)
    return sift.Counts(
        **{name: sums[name] for name in names}, reasons=dict(reasons), kinds=dict(kinds)
    )


@contextmanager
def listening(spark: SparkSession) -> Iterator[None]:
    """Record the metrics of the stages meanwhile."""
    with recording():
        listener = StageMetricsListener()
        spark.streams.addListener(listener)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)
            listener.close()


def reading_series(kind: str) -> Series:
    return series("homes_readings_total", kind=kind)


def metrics_of_hub(events: Sequence[Event]) -> dict[Series, float]:
    """The metrics of sift, counted by the reference functions of the schema."""
    kinds, late, bad = Counter[str](), 0, 0
    for event in events:
        body, enqueued_ms = event.body, event.enqueued_ms or 0
        try:
            reading = decode_reading(body)
        except BadRecord:
            bad += 1
            continue
        if reading.at > 10**12 * 5:
            bad += 1
            continue
        kinds[reading.sensor] += 1
        late += enqueued_ms - reading.at > LATE_MS
    readings = {reading_series(kind): float(kinds[kind]) for kind in schema.KINDS}
    others = {"homes_late_readings_total": late, "homes_malformed_readings_total": bad}
    return readings | {series(name): float(count) for name, count in others.items()}


def test_activities_are_sent_once_and_invalid_records_become_dead_letters(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    faults = ReadingFaults(late=0.05, duplicates=0.1, malformed=0.05, faults=0.02, low_battery=0.1)
    simulator = HomeSimulator(60, 5, reading_faults=faults)
    batches = [simulator.minute(minute) for minute in range(29_867_193, 29_867_198)]
    sent = [event for batch in batches for event in batch.events()]
    clock_wrong = Event(changed(at=10**13), partition_key="h000042")
    put(namespace, "sensors", [*sent[: len(sent) // 2]])
    ahead = replace(SETTINGS, ahead_max_s=10.0**9)
    with listening(spark):
        first = sift_all(spark, namespace, tmp_path / "checkpoint", ahead)
        # Two quiet readings that are not late: Spark's expressions validate the first, and pass on
        # the second, because a space follows the object.
        quiet = json.loads(encode_reading(QUIET)) | {"at": now_ms(SystemClock())}
        texts = [json.dumps(quiet | {"sensor": name}) for name in ("door", "temperature")]
        traced = traced_events()
        fresh = [
            Event(text.encode(), partition_key="h000042") for text in (texts[0], texts[1] + " ")
        ]
        put(namespace, "sensors", [*sent[len(sent) // 2 :], clock_wrong, *fresh, *traced])
        second = sift_all(spark, namespace, tmp_path / "checkpoint", ahead)
        counts = metrics_of_hub(read_all(namespace, "sensors"))
        until(lambda: scrape("homes_") == counts)
        # The series of a query end with it.
        until(lambda: scrape("pumphouse_spark_input_rows_total", query="sift") == {})
    counted = total([first, second])
    assert counted.kinds == {kind: counts[reading_series(kind)] for kind in schema.KINDS}
    assert counted.late == counts[series("homes_late_readings_total")]
    assert counted.late + len(fresh) + len(traced) == counted.readings - counted.malformed

    good, bad = expected(event.body for event in [*sent, clock_wrong, *traced])
    identities = {activity.reading.identity: activity for activity in good}
    activities = read_all(namespace, "activity")
    assert sorted(event.body for event in activities) == sorted(
        encode_activity(activity) for activity in identities.values()
    )
    assert all(event.partition_key == json.loads(event.body)["home"] for event in activities)
    came, _ = expected(event.body for event in read_all(namespace, "sensors"))
    in_order = list(dict.fromkeys(activity.reading.identity for activity in came))
    assert [schema.decode_activity(event.body).reading.identity for event in activities] == in_order
    letters = read_all(namespace, "deadletter")
    reasons = Counter(str(letter.properties["reason"]) for letter in letters)
    assert sorted(letter.body for letter in letters) == sorted(bad)
    assert len({(e.properties["partition"], e.properties["sequence"]) for e in letters}) == (
        len(bad)
    )
    assert reasons == counted.reasons
    assert reasons["bad-time"] == 1
    assert counted.activities == len(identities)
    assert counted.duplicates == len(good) - len(identities) > 0
    assert counted.malformed == len(bad) > 1
    assert counted.readings == len(sent) + 1 + len(fresh) + len(traced)
    traces = {event.body: event.properties for event in activities if event.properties}
    kept = [encode_activity(each) for each in expected(event.body for event in traced)[0]]
    both = dict.fromkeys((TRACEPARENT, DIAGNOSTIC_ID), CONTEXT)
    assert traces == {kept[0]: both, kept[1]: both | {TRACESTATE: "a=b"}, kept[2]: both}
    assert (
        counted.dropped
        == counted.readings - counted.activities - counted.malformed - counted.duplicates
    )


def test_a_delivery_that_fails_is_repeated(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the state were stored, readings that were not sent would be dropped as duplicates."""
    from pyspark.errors import StreamingQueryException

    marker = tmp_path / "failed"

    def failing_delivery(*hubs: dict[str, str]) -> Deliver:
        deliver = delivery_to(*hubs)

        def fail_once(events: OutgoingEvents) -> None:
            if not marker.exists():
                marker.touch()
                raise ConnectionFailed("as a test")
            deliver(events)

        return fail_once

    monkeypatch.setattr(sift, "delivery_to", failing_delivery)
    batch = HomeSimulator(60, 5).minute(29_867_193)
    put(namespace, "sensors", batch.events())
    ahead = replace(SETTINGS, ahead_max_s=10.0**9)
    with suppress(StreamingQueryException):  # Spark may also repeat the task
        sift_all(spark, namespace, tmp_path / "checkpoint", ahead)
    sift_all(spark, namespace, tmp_path / "checkpoint", ahead)
    assert marker.exists()
    good, _ = expected(batch.bodies())
    sent = {event.body for event in read_all(namespace, "activity")}
    assert sent == {encode_activity(activity) for activity in good} != set()


def test_a_checkpoint_keeps_its_number_of_buckets(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    """With another number, duplicates of the readings before the restart would not be found."""
    batch, checkpoint = HomeSimulator(60, 5).minute(29_867_193), tmp_path / "checkpoint"
    before = replace(SETTINGS, ahead_max_s=10.0**9, buckets=1)
    put(namespace, "sensors", batch.events())
    first = sift_all(spark, namespace, checkpoint, before)
    put(namespace, "sensors", batch.events())
    second = sift_all(spark, namespace, checkpoint, replace(before, buckets=5))
    assert (second.activities, second.duplicates) == (0, first.activities)


def test_a_checkpoint_of_an_earlier_version_has_16_buckets() -> None:
    earlier = ["commits", "metadata", "offsets", "state"]
    assert buckets_in(earlier) == 16
    assert buckets_in([*earlier, "buckets=6"]) == 6


def traced_events() -> list[Event]:
    """Doors that open, with contexts of several kinds, valid and invalid ones."""
    now = now_ms(SystemClock())
    contexts: list[dict[str, str]] = [
        {TRACEPARENT: CONTEXT}, {TRACEPARENT: CONTEXT, TRACESTATE: "a=b"}, {DIAGNOSTIC_ID: CONTEXT},
        {TRACEPARENT: "00-0-0-00"}, {TRACEPARENT: CONTEXT + "x" * 2000}, {TRACESTATE: "a=b"},
        {"other": "1"},
    ]  # fmt: skip
    readings = [replace(READING, at=now, since=now - n, seq=n) for n in range(len(contexts))]
    bodies = [encode_reading(reading) for reading in readings]
    bodies[2] += b" "  # Spark's expressions pass it on to the exact validation
    pairs = zip(bodies, contexts, strict=True)
    return [Event(body, context, partition_key="h000042") for body, context in pairs]


def expected(bodies: Any) -> tuple[Sequence[schema.Activity], Sequence[bytes]]:
    """Activities and invalid bodies, by the reference functions of the schema."""
    good, bad = [], []
    for body in bodies:
        try:
            reading = decode_reading(body)
        except BadRecord:
            bad.append(body)
            continue
        if reading.at > 10**12 * 5:
            bad.append(body)
        elif (activity := schema.activity_of(reading)) is not None:
            good.append(activity)
    return good, bad
