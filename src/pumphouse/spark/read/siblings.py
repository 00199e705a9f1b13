"""Readers of one partition that belong to the same batch of the same query.

A query may scan its source more than once in a batch: a self-union, a self-join, two actions in
`foreachBatch`, a second attempt of a task. Its tasks must not evict each other, and must still
evict every other query. The hub evicts readers of a lower or an equal epoch, and refuses a reader
whose epoch is lower than that of the present one. So the epoch of a task is, from its high bits:

    start of the run in ms + number of the batch | attempt of the task | time left

The time left falls from the planning of the batch on. A task that attaches later has a lower epoch
and is refused; it waits until the present one has read its range. All readers of a batch have one
name, by which a task knows that the other reader is such a sibling.

    ReaderEvicted -> is_sibling -> wait, and attach again
                     ^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from pumphouse.errors import PumphouseError, ReaderEvicted

TIME_BITS, ATTEMPT_BITS = 18, 3
BATCH_EPOCH = 1 << (TIME_BITS + ATTEMPT_BITS)  # between the epochs of two batches
STEP_MS = 100  # tasks that attach within this time have one epoch: one of them is evicted once
# When a batch runs for so long (7 hours) that no time is left, chance decides.
RANDOM_BITS = 10

FIRST_WAIT_S, LONGEST_WAIT_S = 0.15, 1.0  # the first is longer than a step
# The tasks of a tenant all read with the epoch of its lease: each that attaches evicts the other.
# The growing wait lets one of them finish; what the other has read is kept.
TENANT_WAIT_S = 30.0
SIBLING_S = 600.0  # the longest wait for a sibling; it may be slow, or its machine may be gone

PROBE = "spark-probe-"
QUERY = re.compile(
    r"spark-(?P<query>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(?P<run>[0-9a-f]*)-\d*"
)
SENTENCE_CHARS_MAX = 1024  # the name comes in the first sentence, and has up to 256
OTHER = re.compile(
    r"(?:New r|R)eceiver '(?P<name>.*?)' with (?:higher epoch of|a higher epoch)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """What Spark knows about a task: its query and batch, and which attempt it is."""

    query: str = ""
    run: str = ""
    batch: str = ""
    attempt: int = 0

    def reader_name(self, otherwise: str) -> str:
        """The name of the readers of this batch; at most 64 characters, a limit of the service."""
        if not self.query:
            return otherwise
        return f"spark-{self.query}-{self.run[:8]}-{self.batch}"[:64]


def task_origin() -> TaskOrigin:
    """The origin of the task that runs in this process; empty outside of Spark."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return TaskOrigin()

    def local(name: str) -> str:
        return task.getLocalProperty(name) or ""

    return TaskOrigin(
        query=local("sql.streaming.queryId"),
        # Spark names the jobs of a streaming query by its run.
        run=local("spark.jobGroup.id"),
        batch=local("streaming.sql.batchId"),
        attempt=task.attemptNumber(),
    )


def task_epoch(base: int, attempt: int, waited_ms: int, rng: Random) -> int:
    """The epoch with which a task attaches, `waited_ms` after its batch was planned."""
    left = (1 << TIME_BITS) - 1 - max(0, waited_ms) // STEP_MS
    if left < 1 << RANDOM_BITS:
        left = rng.randrange(1 << RANDOM_BITS)
    return base + (min(attempt, (1 << ATTEMPT_BITS) - 1) << TIME_BITS) + left


def other_reader(evicted: ReaderEvicted) -> str:
    """The name of the reader that evicted or excluded this one; "" if the hub does not name it."""
    match = OTHER.search(evicted.description[:SENTENCE_CHARS_MAX])
    return match["name"] if match else ""


def is_sibling(evicted: ReaderEvicted, name: str) -> bool:
    return bool(name) and other_reader(evicted) == name


def is_reader_of_driver(evicted: ReaderEvicted, name: str) -> bool:
    """Whether a task may evict the other reader: a probe, or a guard of this query; see guard.py.

    The guard of another source of the query may have a higher epoch than this task.
    """
    other = other_reader(evicted)
    return other.startswith(PROBE) or (bool(query_of(name)) and other == guard_name(name))


def guard_name(reader: str) -> str:
    """The name of the guard of the query of this reader."""
    return reader.rpartition("-")[0] + "-"


def probe_name(token: str) -> str:
    """The name of the readers with which a driver looks up something."""
    return f"{PROBE}{token}"


def query_of(reader: str) -> str:
    """The id of the query in the name of a reader; "" if it is not of a query."""
    match = QUERY.match(reader)
    return match["query"] if match else ""


def describe_reader(reader: str) -> str:
    if query := query_of(reader):
        return f"the query with id {query}"
    return f"the reader {reader!r}" if reader else "another reader"


def taken_error(group: str, partition: str, evicted: ReaderEvicted) -> PumphouseError:
    """The error of a query whose partition another one has taken."""
    return PumphouseError(
        f"partition {partition} of consumer group {group} has another reader with a higher epoch: "
        f"{describe_reader(other_reader(evicted))}. Of two queries in one group the newer one "
        "reads, and the older one fails. Give this query a consumer group of its own, set "
        "assignment to share the group, or set useExclusiveReceiver=false on both. The hub: "
        f"{evicted.description}"
    )


def wait_s(attempts: int, rng: Random, longest_s: float = LONGEST_WAIT_S) -> float:
    """The delay before the next attempt to attach."""
    return min(longest_s, FIRST_WAIT_S * 1.5 ** min(attempts, 20)) * (1 + 0.2 * rng.random())
