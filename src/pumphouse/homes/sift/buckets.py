"""How many values of state a checkpoint of `sift` has.

A reading is a duplicate by the state of its bucket. With another number of buckets the partitions
have other buckets, and duplicates are not found. So a checkpoint keeps the number of its first
start. It is the name of a folder in the checkpoint, because a folder is created atomically, before
the first batch.

    checkpoint -> kept_buckets -> sift/stage.py
                  ^^^^^^^^^^^^ this module, in the driver
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "buckets="
EARLIER: Final = 16  # of checkpoints without such a folder


def kept_buckets(spark: SparkSession, checkpoint: str, buckets: int) -> int:
    """The number of buckets of a checkpoint; a new checkpoint gets `buckets`."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = folder.getFileSystem(spark._jsc.hadoopConfiguration())
    names = []
    if files.exists(folder):
        names = [each.getPath().getName() for each in files.listStatus(folder)]
    if not names:
        files.mkdirs(jvm.org.apache.hadoop.fs.Path(folder, f"{PREFIX}{buckets}"))
        return buckets
    return buckets_in(names)


def buckets_in(names: list[str]) -> int:
    """The number of a checkpoint that contains these names."""
    numbers = (int(name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX))
    return next(numbers, EARLIER)
