"""How the pipeline starts each stage, and what each stage counts.

PipelineOptions -> stage_starters -> StageStarter: sift.start, watch.start, record.start
                   ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pumphouse.errors import OptionError
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.options import STAGES, PipelineOptions
from pumphouse.homes.record import stage as record
from pumphouse.homes.record.metrics import RecordMetrics
from pumphouse.homes.record.stage import Recorder, RecordSettings
from pumphouse.homes.stage_counts import status_counts
from pumphouse.private_files import create_private_folder
from pumphouse.telemetry.meter import is_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class StageStarter:
    """The name of a stage, the function that starts it, and the one that counts its readings from
    Spark's progress."""

    name: str
    start: Callable[[], StreamingQuery]
    counts: Callable[[Any], Mapping[str, Any]]
    probe: Callable[[], None] | None = None  # asks the database of the stage


@contextmanager
def stage_starters(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions
) -> Iterator[list[StageStarter]]:
    """Starters of the selected stages, in the order in which events pass through them."""
    with ExitStack() as resources:
        yield [
            MAKERS[name](spark, namespace, options, resources)
            for name in STAGES
            if name in options.stages
        ]


def sift_starter(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, resources: ExitStack
) -> StageStarter:
    from pumphouse.homes.sift import stage as sift

    settings = sift.SiftSettings(alarms=True, kinds=options.kinds)
    if options.accelerated:
        settings = replace(settings, ahead_max_s=None)

    def start() -> StreamingQuery:
        prepare_thread(spark, "sift")
        return sift.start(spark, namespace, options.checkpoint("sift"), settings, options.trigger)

    return StageStarter(
        "sift", start, lambda progress: status_counts("sift", asdict(sift.counts(progress)))
    )


def watch_starter(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, resources: ExitStack
) -> StageStarter:
    def start() -> StreamingQuery:
        from pumphouse.homes.watch import stage as watch

        prepare_thread(spark, "watch")
        settings = watch.WatchSettings(sharing=options.sharing, alarms=False, kinds=options.kinds)
        checkpoint = options.checkpoint("watch")
        return watch.start(spark, namespace, checkpoint, settings, options.trigger)

    return StageStarter("watch", start, lambda progress: {})


def record_starter(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, resources: ExitStack
) -> StageStarter:
    settings = record_settings(options)
    current = resources.enter_context(CurrentRecorder(settings))

    def start() -> StreamingQuery:
        prepare_thread(spark, "record")
        checkpoint = options.checkpoint("record")
        recorder = current.reopen()
        return record.start(spark, namespace, checkpoint, settings, options.trigger, recorder)

    return StageStarter("record", start, lambda progress: current.counts(), current.probe)


MAKERS = {"sift": sift_starter, "watch": watch_starter, "record": record_starter}


def record_settings(options: PipelineOptions) -> RecordSettings:
    return RecordSettings(
        storage_format=options.storage_format,
        storage=options.storage or str(options.data / "records"),
        database=options.database or str(options.data / "homes.db"),
        kinds=options.kinds,
    )


def check_stores(options: PipelineOptions) -> None:
    """Raise if the folder, the storage or the database of the stages is unusable."""
    try:
        create_private_folder(options.data)
    except OSError as failed:
        raise OptionError(
            f"{options.data} cannot be used for data: {failed}. Choose another folder with --data"
        ) from None
    if "record" in options.stages:
        record.check(record_settings(options))


class CurrentRecorder:
    """The recorder in use. Every restart opens a new one, with new connections; the metrics
    continue."""

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        self._metrics = RecordMetrics(settings.kinds) if is_on() else None
        self._recorder: Recorder | None = None

    def __enter__(self) -> CurrentRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        if self._metrics is not None:
            self._metrics.close()

    def reopen(self) -> Recorder:
        self.close()
        self._recorder = Recorder.open(self._settings, metrics=self._metrics)
        return self._recorder

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def probe(self) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.probe()

    def counts(self) -> Mapping[str, Any]:
        recorder = self._recorder
        return {} if recorder is None else status_counts("record", asdict(recorder.recorded))


def prepare_thread(spark: SparkSession, pool: str) -> None:
    """Put the queries of this thread into a scheduler pool, and make the session its active one."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
    # Spark looks up Python sinks in the active session of the thread; a new thread has none.
    sessions: Any = spark._get_j_spark_session_class(spark._jvm)
    sessions.setActiveSession(spark._jsparkSession)
