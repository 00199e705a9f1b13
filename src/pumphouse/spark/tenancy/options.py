"""The options of a query that shares its consumer group.

options of a query -> read_tenancy -> TenancyOptions -> tenant host
                      ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pumphouse.errors import OptionError
from pumphouse.leases.strategies import parse_strategy, strategy_forms
from pumphouse.processor.options import ProcessorOptions
from pumphouse.spark.catalogue import FIXED
from pumphouse.spark.option_values import OptionValues

# Stores that hosts in several processes can share, as leases.store_url lists them.
SHARED_STORES = (
    "sqlite:///PATH, postgres://USER@HOST/DATABASE, redis://HOST:PORT/DB, "
    "blob://ACCOUNT/CONTAINER, bloblease://ACCOUNT/CONTAINER"
)

ALL = "all"
# A tenant hands a partition over between batches; strategies that grab partitions do not wait.
SHARING_STRATEGIES = strategy_forms(grabbing=False)
ONLY_WHEN_SHARED = ("store", "host", "leaseDuration", "renewInterval", "cycleInterval", "handOff")
NOT_IN_HOST_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TenancyOptions:
    """How a query shares its consumer group."""

    assignment: str  # a strategy of the processors: steady, balanced, greedy, fixed:4
    store: str = field(repr=False)
    host: str
    lease_s: float
    renew_s: float
    interval_s: float
    hand_off_s: float | None
    checkpoints: bool
    folder: str  # Spark's checkpointLocation, if it was given to the reader too

    @property
    def keeps_partitions(self) -> bool:
        """Whether a stopped host releases no partition: it owns them until the leases expire."""
        return self.assignment.startswith("fixed")


def read_tenancy(
    values: OptionValues, *, streaming: bool, exclusive: bool
) -> TenancyOptions | None:
    """How the query shares its group; None if it reads all partitions."""
    assignment = values.text("assignment").strip().lower()
    if assignment == ALL:
        if given := [name for name in ONLY_WHEN_SHARED if values.given(name)]:
            raise OptionError(f"{given[0]} needs an assignment: use {SHARING_STRATEGIES}")
        return None
    check_combination(values, streaming, exclusive)
    if parse_strategy(assignment).grabs:
        raise OptionError(f"invalid assignment {assignment!r}: use {SHARING_STRATEGIES}")
    case = FIXED if assignment.startswith("fixed") else ""
    tenancy = TenancyOptions(
        assignment=assignment,
        store=values.text("store"),
        host=read_host(values),
        lease_s=values.duration("leaseDuration", case),
        renew_s=values.duration("renewInterval", case),
        interval_s=values.duration("cycleInterval", case),
        hand_off_s=values.duration("handOff") or None,
        checkpoints=values.flag("tenantCheckpoints"),
        folder=values.spark_option("checkpointLocation"),
    )
    try:
        processor_options(tenancy)
    except OptionError as wrong:
        raise OptionError(
            f"leaseDuration, renewInterval and handOff do not fit together: {wrong}"
        ) from None
    return tenancy


def check_combination(values: OptionValues, streaming: bool, exclusive: bool) -> None:
    assignment = values.text("assignment")
    if not streaming:
        raise OptionError("assignment is for streams: a batch query cannot share partitions")
    if not values.text("store"):
        raise OptionError(
            f"assignment={assignment} needs a store that all hosts of the group share: "
            f"{SHARED_STORES}, or a storage connection string"
        )
    if values.text("store").strip().lower().startswith("memory:"):
        raise OptionError(
            f"a store `memory:` belongs to one process; use {SHARED_STORES}, which all hosts of "
            "the group can reach"
        )
    if not exclusive:
        raise OptionError(
            f"assignment={assignment} reads with the epochs of its leases; leave "
            "useExclusiveReceiver out"
        )
    for name, why in (
        ("partitions", "the store decides which partitions the query reads"),
        ("checkpointStore", "a tenant writes its checkpoints into store"),
    ):
        if values.text(name):
            raise OptionError(f"{name} and assignment={assignment} exclude each other: {why}")


def read_host(values: OptionValues) -> str:
    """The name that other hosts see: `host`, or queryName if it is given to the reader too."""
    if host := values.text("host").strip():
        return host
    query = NOT_IN_HOST_NAMES.sub("-", values.spark_option("queryName")).strip("-")
    return f"spark-{query}" if query else ""


def processor_options(tenancy: TenancyOptions) -> ProcessorOptions:
    """These settings in the form that the engine of the processors takes."""
    return ProcessorOptions(
        interval_s=tenancy.interval_s,
        lease_s=tenancy.lease_s,
        renew_s=tenancy.renew_s,
        hand_off_s=tenancy.hand_off_s,
        stop_s=10.0,
        handler_timeout_s=None,  # a micro-batch may run for hours
        max_partitions=parse_strategy(tenancy.assignment).max_partitions,
    )
