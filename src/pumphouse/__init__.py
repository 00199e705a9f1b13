"""Pumphouse: partitioned event streams in Python. This module holds the public names.

Each name is imported when it is first used, so that `pumphouse --help` and a test run that merely
has Pumphouse installed do not wait for numpy. docs/api lists the names and the other packages that
are public; everything else is internal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pumphouse import _renamed

if TYPE_CHECKING:
    # For type checkers, which do not read the table below. A test compares them.
    # isort: off
    from pumphouse.client.base import (
        HubClient as HubClient,
        HubProperties as HubProperties,
        PartitionEnd as PartitionEnd,
        PartitionProperties as PartitionProperties,
        Reader as Reader,
        ReaderOptions as ReaderOptions,
        RetryOptions as RetryOptions,
        Sender as Sender,
    )
    from pumphouse.client.bulk import (
        BulkClient as BulkClient,
        EventsGone as EventsGone,
        HubRecreated as HubRecreated,
        RangeOptions as RangeOptions,
        RangeTimeout as RangeTimeout,
        read_range as read_range,
    )
    from pumphouse.client.factory import open_client as open_client
    from pumphouse.clock import (
        Clock as Clock,
        MovableClock as MovableClock,
    )
    from pumphouse.errors import (
        AmqpError as AmqpError,
        AuthError as AuthError,
        CheckpointRefused as CheckpointRefused,
        ConnectionFailed as ConnectionFailed,
        DataDirectoryError as DataDirectoryError,
        EventsExpired as EventsExpired,
        EventTooLarge as EventTooLarge,
        HandlerStuck as HandlerStuck,
        HubExists as HubExists,
        HubNotFound as HubNotFound,
        HubUntrusted as HubUntrusted,
        LeaseLost as LeaseLost,
        OptionError as OptionError,
        OwnershipLost as OwnershipLost,
        PermanentFailure as PermanentFailure,
        PoisonEvent as PoisonEvent,
        PortTaken as PortTaken,
        PumphouseError as PumphouseError,
        QuotaExceeded as QuotaExceeded,
        ReaderEvicted as ReaderEvicted,
        StoreError as StoreError,
        StoreMisused as StoreMisused,
        StoreUnavailable as StoreUnavailable,
    )
    from pumphouse.events import (
        EARLIEST as EARLIEST,
        LATEST as LATEST,
        Event as Event,
        Position as Position,
    )
    from pumphouse.hub.access.auth import (
        AccessRule as AccessRule,
        Claim as Claim,
    )
    from pumphouse.hub.access.token_issuer import TokenIssuer as TokenIssuer
    from pumphouse.hub.embedded import EmbeddedHub as EmbeddedHub
    from pumphouse.hub.faults.rules import Faults as Faults
    from pumphouse.hub.options import (
        AccessOptions as AccessOptions,
        ConfigOptions as ConfigOptions,
        LimitOptions as LimitOptions,
        ListenerOptions as ListenerOptions,
        Retention as Retention,
        ServerOptions as ServerOptions,
        StorageOptions as StorageOptions,
    )
    from pumphouse.leases.store import CheckpointStore as CheckpointStore
    from pumphouse.leases.store_url import open_store as open_store
    from pumphouse.leases.stores.blob.store import BlobStore as BlobStore
    from pumphouse.leases.stores.blob_lease.store import BlobLeaseStore as BlobLeaseStore
    from pumphouse.leases.stores.memory import MemoryStore as MemoryStore
    from pumphouse.leases.stores.postgres.store import PostgresStore as PostgresStore
    from pumphouse.leases.stores.redis.store import RedisStore as RedisStore
    from pumphouse.leases.stores.sqlite.store import SqliteStore as SqliteStore
    from pumphouse.processor.dead_letters import (
        DeadLetterFile as DeadLetterFile,
        DeadLetterHub as DeadLetterHub,
    )
    from pumphouse.processor.fixed import FixedPartitionProcessor as FixedPartitionProcessor
    from pumphouse.processor.handling.key_order import Concurrency as Concurrency
    from pumphouse.processor.health.host_checks import health_checks as health_checks
    from pumphouse.processor.host import (
        CloseReason as CloseReason,
        EventProcessor as EventProcessor,
        EventProcessorHost as EventProcessorHost,
        PartitionContext as PartitionContext,
    )
    from pumphouse.processor.hosting.group import ProcessorGroup as ProcessorGroup
    from pumphouse.processor.options import (
        RELAXED as RELAXED,
        CheckpointPolicy as CheckpointPolicy,
        EventProcessorOptions as EventProcessorOptions,
        ExceptionReceived as ExceptionReceived,
        FixedPartitionOptions as FixedPartitionOptions,
        PartitionManagerOptions as PartitionManagerOptions,
        PoisonPolicy as PoisonPolicy,
        ProcessorOptions as ProcessorOptions,
    )
    from pumphouse.processor.partition import PartitionClient as PartitionClient
    from pumphouse.processor.processor import Processor as Processor
    # isort: on

_NAMES_OF_MODULE = {
    "pumphouse.client.base": (
        "HubClient HubProperties PartitionEnd PartitionProperties Reader ReaderOptions "
        "RetryOptions Sender"
    ),
    "pumphouse.client.bulk": (
        "BulkClient EventsGone HubRecreated RangeOptions RangeTimeout read_range"
    ),
    "pumphouse.client.factory": "open_client",
    "pumphouse.clock": "Clock MovableClock",
    "pumphouse.errors": (
        "AmqpError AuthError CheckpointRefused ConnectionFailed DataDirectoryError "
        "EventTooLarge EventsExpired HandlerStuck HubExists HubNotFound HubUntrusted LeaseLost "
        "OptionError OwnershipLost PermanentFailure PoisonEvent PortTaken PumphouseError "
        "QuotaExceeded ReaderEvicted StoreError StoreMisused StoreUnavailable"
    ),
    "pumphouse.events": "EARLIEST LATEST Event Position",
    "pumphouse.hub.access.auth": "AccessRule Claim",
    "pumphouse.hub.access.token_issuer": "TokenIssuer",
    "pumphouse.hub.embedded": "EmbeddedHub",
    "pumphouse.hub.faults.rules": "Faults",
    "pumphouse.hub.options": (
        "AccessOptions ConfigOptions LimitOptions ListenerOptions Retention ServerOptions "
        "StorageOptions"
    ),
    "pumphouse.leases.store": "CheckpointStore",
    "pumphouse.leases.store_url": "open_store",
    "pumphouse.leases.stores.blob.store": "BlobStore",
    "pumphouse.leases.stores.blob_lease.store": "BlobLeaseStore",
    "pumphouse.leases.stores.memory": "MemoryStore",
    "pumphouse.leases.stores.postgres.store": "PostgresStore",
    "pumphouse.leases.stores.redis.store": "RedisStore",
    "pumphouse.leases.stores.sqlite.store": "SqliteStore",
    "pumphouse.processor.dead_letters": "DeadLetterFile DeadLetterHub",
    "pumphouse.processor.fixed": "FixedPartitionProcessor",
    "pumphouse.processor.handling.key_order": "Concurrency",
    "pumphouse.processor.health.host_checks": "health_checks",
    "pumphouse.processor.host": "CloseReason EventProcessor EventProcessorHost PartitionContext",
    "pumphouse.processor.hosting.group": "ProcessorGroup",
    "pumphouse.processor.options": (
        "RELAXED CheckpointPolicy EventProcessorOptions ExceptionReceived FixedPartitionOptions "
        "PartitionManagerOptions PoisonPolicy ProcessorOptions"
    ),
    "pumphouse.processor.partition": "PartitionClient",
    "pumphouse.processor.processor": "Processor",
}
_MODULE_OF_NAME = {
    name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()
}
# A literal, because type checkers cannot evaluate an expression. A test compares it with the table.
# fmt: off
__all__ = [  # noqa: RUF022 - sorted as `sorted` does
    "AccessOptions", "AccessRule", "AmqpError", "AuthError", "BlobLeaseStore", "BlobStore",
    "BulkClient", "CheckpointPolicy", "CheckpointRefused", "CheckpointStore", "Claim", "Clock",
    "CloseReason", "Concurrency", "ConfigOptions", "ConnectionFailed", "DataDirectoryError",
    "DeadLetterFile", "DeadLetterHub", "EARLIEST", "EmbeddedHub", "Event", "EventProcessor",
    "EventProcessorHost", "EventProcessorOptions", "EventTooLarge", "EventsExpired", "EventsGone",
    "ExceptionReceived", "Faults", "FixedPartitionOptions", "FixedPartitionProcessor",
    "HandlerStuck", "HubClient", "HubExists", "HubNotFound", "HubProperties", "HubRecreated",
    "HubUntrusted", "LATEST", "LeaseLost", "LimitOptions", "ListenerOptions", "MemoryStore",
    "MovableClock", "OptionError", "OwnershipLost", "PartitionClient", "PartitionContext",
    "PartitionEnd", "PartitionManagerOptions", "PartitionProperties", "PermanentFailure",
    "PoisonEvent", "PoisonPolicy", "PortTaken", "Position", "PostgresStore", "Processor",
    "ProcessorGroup", "ProcessorOptions", "PumphouseError", "QuotaExceeded", "RELAXED",
    "RangeOptions", "RangeTimeout", "Reader", "ReaderEvicted", "ReaderOptions", "RedisStore",
    "Retention", "RetryOptions", "Sender", "ServerOptions", "SqliteStore", "StorageOptions",
    "StoreError", "StoreMisused", "StoreUnavailable", "TokenIssuer", "health_checks", "open_client",
    "open_store", "read_range",
]
# fmt: on

_renamed.install()


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'pumphouse' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
