"""A process that runs sift and watch in small batches, until it is killed.

python -m tests.homes.stages_process FOLDER, with the namespace's connection string on stdin.
"""

from __future__ import annotations

import sys

from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.watch import stage as watch
from pumphouse.spark import session

OFTEN = {"processingTime": "200 milliseconds"}


def main(folder: str) -> None:
    namespace = HomesNamespace(sys.stdin.readline().strip())
    spark = session("stages", "local[2]", {"spark.log.level": "ERROR"})
    sifting = sift.SiftSettings(events_max=2_000, partitions_per_task=1, ahead_max_s=None)
    watching = watch.WatchSettings(events_max=2_000, partitions_per_task=1)
    sift.start(spark, namespace, f"{folder}/sift", sifting, OFTEN)
    watch.start(spark, namespace, f"{folder}/watch", watching, OFTEN)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1])
