"""A handler for the example deployments: it counts the events of each partition."""

from collections import Counter

counts: Counter[str] = Counter()


def handle(partition, batch):
    counts[partition.id] += len(batch)
    print(f"partition {partition.id}: {counts[partition.id]} events", flush=True)
