"""The trace of an alert is stored once, read back, and exported as spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pumphouse.homes.alert_spans import export_spans, steps_of
from pumphouse.homes.record.database import Database
from pumphouse.homes.record.recorded import TracedAlert
from pumphouse.homes.record.records import open_records
from pumphouse.homes.record.stage import traces_of
from tests.homes.record.rows import START_MS, activity, alert, as_tables, reached

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", f"00-{TRACE_ID}-{SPAN_ID}-00"


def test_a_database_keeps_the_first_trace_of_an_alert(database: Database, url: str) -> None:
    # The alert of the home 3 was raised by an activity, that of the home 4 was not.
    raised = replace(alert(3), at=activity(3, 0, "smoke", 80.0).reading.at)
    batch = as_tables([activity(3, 0, "smoke", 80.0)], [raised, alert(4), alert(5)])
    database.reads_back = True
    traces = {raised.id: f"{SAMPLED} a=b", alert(4).id: SAMPLED}
    stored = database.store(batch, reached(batch), traces=traces).stored
    assert list(stored.traced) == [
        TracedAlert("fire", f"{SAMPLED} a=b", raised.at, START_MS, START_MS),
        TracedAlert("fire", SAMPLED, alert(4).at, None, START_MS),
    ]
    # Spark repeats the batch; and the alert is sent again, with another trace.
    assert not database.store(batch, reached(batch), traces=traces).stored.traced
    again = as_tables(alerts=[raised], first=9)
    assert not database.store(again, reached(again), traces={raised.id: UNSAMPLED}).stored.traced
    records = open_records(url)
    found = {each.alert.home: each.trace for each in records.alerts(0, 10)}
    assert found == {"h000003": f"{SAMPLED} a=b", "h000004": SAMPLED, "h000005": None}
    shown = records.alert(raised.id)
    assert shown is not None
    assert shown.trace == f"{SAMPLED} a=b"
    records.close()


def test_invalid_contexts_of_a_batch_are_ignored() -> None:
    texts = [SAMPLED, f"{SAMPLED} a=b", "00-0-0-00", None, SAMPLED, ""]
    ids = ["a", "b", "c", "d", None, "f"]
    rows = pa.table({"id": pa.array(ids, pa.string()), "trace": pa.array(texts, pa.string())})
    assert traces_of(rows) == {"a": SAMPLED, "b": f"{SAMPLED} a=b"}
    assert traces_of(rows.slice(3, 1)) == {}
    assert traces_of(rows.select(["id"])) == {}


def test_steps_with_unknown_times_are_left_out() -> None:
    full = TracedAlert("fire", SAMPLED, 1000, 3000, 4000)
    assert list(steps_of(full, 5000)) == [
        ("sensors", "sift", 1000, 3000),
        ("activity", "watch", 3000, 4000),
        ("alerts", "record", 4000, 5000),
    ]
    assert list(steps_of(replace(full, sifted=None), 5000)) == [("alerts", "record", 4000, 5000)]
    ahead = replace(full, at=9000)
    assert next(steps_of(ahead, 5000)) == ("sensors", "sift", 3000, 3000)


def test_an_alert_of_sift_has_not_passed_watch() -> None:
    by_sift = TracedAlert("fire", SAMPLED, 1000, 3010, 3000)
    assert list(steps_of(by_sift, 5000)) == [
        ("sensors", "sift", 1000, 3000),
        ("alerts", "record", 3000, 5000),
    ]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def test_the_spans_of_an_alert_are_children_of_its_reading(exporter: InMemorySpanExporter) -> None:
    alerts = [
        TracedAlert("fire", f"{SAMPLED} a=b", 1000, 3000, 4000),
        TracedAlert("fire", UNSAMPLED, 1000, 3000, 4000),
        TracedAlert("fire", "invalid", 1000, 3000, 4000),
    ]
    export_spans(alerts, 5000)
    spans = exporter.get_finished_spans()
    assert [(span.name, span.start_time, span.end_time) for span in spans] == [
        ("process sensors", 1000 * 10**6, 3000 * 10**6),
        ("process activity", 3000 * 10**6, 4000 * 10**6),
        ("process alerts", 4000 * 10**6, 5000 * 10**6),
    ]
    for span, stage in zip(spans, ("sift", "watch", "record"), strict=True):
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == f"{span.context.trace_id:032x}" == TRACE_ID
        assert f"{span.parent.span_id:016x}" == SPAN_ID
        assert span.context.trace_state.to_header() == "a=b"
        assert span.kind is trace.SpanKind.CONSUMER
        assert (span.attributes or {})["messaging.consumer.group.name"] == stage
