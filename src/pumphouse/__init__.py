"""Pumphouse: partitioned event streams in Python. The public names, and nothing else.

They are imported when they are first used, so that `pumphouse --help` and a test run that merely
has Pumphouse installed do not wait for numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pumphouse.client.base import ReaderOptions, RetryOptions
    from pumphouse.client.opening import open_client
    from pumphouse.clock import MovableClock
    from pumphouse.events import Event, Position
    from pumphouse.hub.auth import AccessRule, Claim
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.hub.faults import Faults
    from pumphouse.hub.issuer import TokenIssuer
    from pumphouse.hub.log import Retention
    from pumphouse.leases.blob import BlobStore
    from pumphouse.leases.bloblease import BlobLeaseStore
    from pumphouse.leases.memory import MemoryStore
    from pumphouse.leases.opening import open_store
    from pumphouse.leases.sqlite import SqliteStore
    from pumphouse.processor.deadletters import DeadLetterFile, DeadLetterHub
    from pumphouse.processor.fixed import FixedPartitionProcessor
    from pumphouse.processor.host import EventProcessorHost
    from pumphouse.processor.hostoptions import EventProcessorOptions, PartitionManagerOptions
    from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
    from pumphouse.processor.processor import Processor

__all__ = [
    "AccessRule",
    "BlobLeaseStore",
    "BlobStore",
    "CheckpointPolicy",
    "Claim",
    "DeadLetterFile",
    "DeadLetterHub",
    "EmbeddedHub",
    "Event",
    "EventProcessorHost",
    "EventProcessorOptions",
    "Faults",
    "FixedPartitionProcessor",
    "MemoryStore",
    "MovableClock",
    "PartitionManagerOptions",
    "PoisonPolicy",
    "Position",
    "Processor",
    "ProcessorOptions",
    "PumphouseError",
    "ReaderOptions",
    "Retention",
    "RetryOptions",
    "SqliteStore",
    "TokenIssuer",
    "open_client",
    "open_store",
]

_PLACES = {
    "AccessRule": "pumphouse.hub.auth",
    "BlobLeaseStore": "pumphouse.leases.bloblease",
    "BlobStore": "pumphouse.leases.blob",
    "CheckpointPolicy": "pumphouse.processor.options",
    "Claim": "pumphouse.hub.auth",
    "DeadLetterFile": "pumphouse.processor.deadletters",
    "DeadLetterHub": "pumphouse.processor.deadletters",
    "EmbeddedHub": "pumphouse.hub.embedded",
    "Event": "pumphouse.events",
    "EventProcessorHost": "pumphouse.processor.host",
    "EventProcessorOptions": "pumphouse.processor.hostoptions",
    "Faults": "pumphouse.hub.faults",
    "FixedPartitionProcessor": "pumphouse.processor.fixed",
    "MemoryStore": "pumphouse.leases.memory",
    "MovableClock": "pumphouse.clock",
    "PartitionManagerOptions": "pumphouse.processor.hostoptions",
    "PoisonPolicy": "pumphouse.processor.options",
    "Position": "pumphouse.events",
    "Processor": "pumphouse.processor.processor",
    "ProcessorOptions": "pumphouse.processor.options",
    "ReaderOptions": "pumphouse.client.base",
    "Retention": "pumphouse.hub.log",
    "RetryOptions": "pumphouse.client.base",
    "SqliteStore": "pumphouse.leases.sqlite",
    "TokenIssuer": "pumphouse.hub.issuer",
    "open_client": "pumphouse.client.opening",
    "open_store": "pumphouse.leases.opening",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'pumphouse' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
