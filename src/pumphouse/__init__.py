"""Pumphouse: partitioned event streams in Python. The public names, and nothing else.

They are imported when they are first used, so that `pumphouse --help` and a test run that merely
has Pumphouse installed do not wait for numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pumphouse import _renamed
from pumphouse.errors import PumphouseError

if TYPE_CHECKING:
    from pumphouse.client.base import ReaderOptions, RetryOptions
    from pumphouse.client.factory import open_client
    from pumphouse.clock import MovableClock
    from pumphouse.events import Event, Position
    from pumphouse.hub.access.auth import AccessRule, Claim
    from pumphouse.hub.access.token_issuer import TokenIssuer
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.hub.faults.rules import Faults
    from pumphouse.hub.storage.memory_log import Retention
    from pumphouse.leases.store_url import open_store
    from pumphouse.leases.stores.blob.store import BlobStore
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore
    from pumphouse.leases.stores.memory import MemoryStore
    from pumphouse.leases.stores.sqlite.store import SqliteStore
    from pumphouse.processor.dead_letters import DeadLetterFile, DeadLetterHub
    from pumphouse.processor.fixed import FixedPartitionProcessor
    from pumphouse.processor.host import EventProcessorHost
    from pumphouse.processor.host_options import EventProcessorOptions, PartitionManagerOptions
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
    "AccessRule": "pumphouse.hub.access.auth",
    "BlobLeaseStore": "pumphouse.leases.stores.blob_lease.store",
    "BlobStore": "pumphouse.leases.stores.blob.store",
    "CheckpointPolicy": "pumphouse.processor.options",
    "Claim": "pumphouse.hub.access.auth",
    "DeadLetterFile": "pumphouse.processor.dead_letters",
    "DeadLetterHub": "pumphouse.processor.dead_letters",
    "EmbeddedHub": "pumphouse.hub.embedded",
    "Event": "pumphouse.events",
    "EventProcessorHost": "pumphouse.processor.host",
    "EventProcessorOptions": "pumphouse.processor.host_options",
    "Faults": "pumphouse.hub.faults.rules",
    "FixedPartitionProcessor": "pumphouse.processor.fixed",
    "MemoryStore": "pumphouse.leases.stores.memory",
    "MovableClock": "pumphouse.clock",
    "PartitionManagerOptions": "pumphouse.processor.host_options",
    "PoisonPolicy": "pumphouse.processor.options",
    "Position": "pumphouse.events",
    "Processor": "pumphouse.processor.processor",
    "ProcessorOptions": "pumphouse.processor.options",
    "ReaderOptions": "pumphouse.client.base",
    "Retention": "pumphouse.hub.storage.memory_log",
    "RetryOptions": "pumphouse.client.base",
    "SqliteStore": "pumphouse.leases.stores.sqlite.store",
    "TokenIssuer": "pumphouse.hub.access.token_issuer",
    "open_client": "pumphouse.client.factory",
    "open_store": "pumphouse.leases.store_url",
}

_renamed.install()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'pumphouse' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
