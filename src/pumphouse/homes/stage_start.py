"""How each stage is started by a pipeline, and what it counts.

PipelineOptions -> stages_of -> StageStarter: sift.start, watch.start, record.start
                   ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pumphouse.errors import OptionError
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record import stage as record
from pumphouse.homes.record.stage import Recorder, RecordSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pumphouse.homes.pipeline import PipelineOptions


@dataclass(frozen=True, slots=True)
class StageStarter:
    """A stage by name, what starts it, and what it counts beside rows."""

    name: str
    start: Callable[[], StreamingQuery]
    counts: Callable[[Any], Mapping[str, Any]]


@contextmanager
def stages_of(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions
) -> Iterator[list[StageStarter]]:
    """The stages that are wanted, in the order in which events pass through them."""
    with ExitStack() as kept:
        yield [
            MAKERS[name](spark, namespace, options, kept)
            for name in ("sift", "watch", "record")
            if name in options.stages
        ]


def sift_of(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, kept: ExitStack
) -> StageStarter:
    from pumphouse.homes.sift import stage as sift

    settings = sift.SiftSettings()
    if options.accelerated:
        settings = replace(settings, ahead_max_s=None)

    def start() -> StreamingQuery:
        in_pool(spark, "sift")
        return sift.start(spark, namespace, options.checkpoint("sift"), settings, options.trigger)

    return StageStarter("sift", start, lambda progress: asdict(sift.counts(progress)))


def watch_of(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, kept: ExitStack
) -> StageStarter:
    def start() -> StreamingQuery:
        from pumphouse.homes.watch import stage as watch

        in_pool(spark, "watch")
        settings = watch.WatchSettings(sharing=options.sharing)
        where = options.checkpoint("watch")
        return watch.start(spark, namespace, where, settings, options.trigger)

    return StageStarter("watch", start, lambda progress: {})


def record_of(
    spark: SparkSession, namespace: HomesNamespace, options: PipelineOptions, kept: ExitStack
) -> StageStarter:
    settings = record_settings(options)
    hand = kept.enter_context(CurrentRecorder(settings))

    def start() -> StreamingQuery:
        in_pool(spark, "record")
        where = options.checkpoint("record")
        return record.start(spark, namespace, where, settings, options.trigger, hand.fresh())

    return StageStarter("record", start, lambda progress: hand.counts())


def record_settings(options: PipelineOptions) -> RecordSettings:
    return RecordSettings(
        storage=options.storage or str(options.data / "records"),
        database=options.database or str(options.data / "homes.db"),
    )


def check_stores(options: PipelineOptions) -> None:
    """Whether there is a namespace for what the stages make: what is wrong with it raises."""
    try:
        options.data.mkdir(parents=True, exist_ok=True)
    except OSError as failed:
        raise OptionError(f"{options.data} cannot be used for data: {failed}") from None
    if "record" in options.stages:
        record.check(record_settings(options))


MAKERS = {"sift": sift_of, "watch": watch_of, "record": record_of}


class CurrentRecorder:
    """The recorder that is at work: after a failure a new one, with connections of its own."""

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        self._recorder: Recorder | None = None

    def __enter__(self) -> CurrentRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()

    def fresh(self) -> Recorder:
        self.drop()
        self._recorder = Recorder.open(self._settings)
        return self._recorder

    def drop(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def counts(self) -> Mapping[str, Any]:
        return {} if self._recorder is None else asdict(self._recorder.recorded)


def in_pool(spark: SparkSession, name: str) -> None:
    """Queries started from this thread share the cores with the other stages, turn by turn."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    # Spark looks for sinks in Python in the session of the thread, and a new thread has none.
    sessions: Any = spark._get_j_spark_session_class(spark._jvm)
    sessions.setActiveSession(spark._jsparkSession)
