"""The options of a query that shares its consumer group.

options of a query -> read_tenancy -> Tenancy -> tenant
                      ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pumphouse.errors import OptionError
from pumphouse.leases.strategies import parse_strategy, strategy_forms
from pumphouse.processor.options import ProcessorOptions
from pumphouse.spark.tenancy.journal import ALL, Tenancy

if TYPE_CHECKING:
    from pumphouse.spark.options import OptionValues

# A tenant hands over in order, so strategies that grab partitions are left out.
SHARING_STRATEGIES = strategy_forms(grabbing=False)
ALONE = ("store", "host", "leaseDuration", "renewInterval", "cycleInterval", "handOff")
# Once a second one more partition, kept for a minute: as the fixed-partition processor does it.
FIXED_S = {"leaseDuration": 60.0, "renewInterval": 20.0, "cycleInterval": 1.0}
USUAL_S = {"leaseDuration": 30.0, "renewInterval": 10.0, "cycleInterval": 10.0}
UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def read_tenancy(values: OptionValues, *, streaming: bool, exclusive: bool) -> Tenancy | None:
    """How the query shares its group; None if it reads everything."""
    assignment = values.text("assignment").strip().lower()
    if assignment == ALL:
        if given := [name for name in ALONE if values.given(name)]:
            raise OptionError(f"{given[0]} needs an assignment: use {SHARING_STRATEGIES}")
        return None
    check_together(values, streaming, exclusive)
    if parse_strategy(assignment).grabs:
        raise OptionError(f"invalid assignment {assignment!r}: use {SHARING_STRATEGIES}")
    usual = FIXED_S if assignment.startswith("fixed") else USUAL_S
    times = {
        name: values.duration(name) if values.given(name) else usual_s
        for name, usual_s in usual.items()
    }
    tenancy = Tenancy(
        assignment=assignment,
        store=values.text("store"),
        host=read_host(values),
        lease_s=times["leaseDuration"],
        renew_s=times["renewInterval"],
        interval_s=times["cycleInterval"],
        hand_off_s=values.duration("handOff") or None,
        checkpoints=values.flag("tenantCheckpoints"),
        folder=values.own("checkpointLocation"),
    )
    try:
        processor_options(tenancy)
    except OptionError as wrong:
        raise OptionError(
            f"leaseDuration, renewInterval and handOff do not fit together: {wrong}"
        ) from None
    return tenancy


def check_together(values: OptionValues, streaming: bool, exclusive: bool) -> None:
    assignment = values.text("assignment")
    if not streaming:
        raise OptionError("assignment is for streams: a batch has no time to share partitions")
    if not values.text("store"):
        raise OptionError(
            f"assignment={assignment} needs a store that all hosts of the group share: "
            "sqlite:///PATH, blob://ACCOUNT/CONTAINER, or a storage connection string"
        )
    if values.text("store").strip().lower().startswith("memory:"):
        raise OptionError("store=memory: is of one process; a group needs one that all can reach")
    if not exclusive:
        raise OptionError(
            f"assignment={assignment} reads with the epochs of its leases; leave "
            "useExclusiveReceiver out"
        )
    for name, why in (
        ("partitions", "the store says which partitions are whose"),
        ("checkpointStore", "a tenant writes its checkpoints into store"),
    ):
        if values.text(name):
            raise OptionError(f"{name} and assignment={assignment} exclude each other: {why}")


def read_host(values: OptionValues) -> str:
    """The name that others see. By the query's name, if the reader was told that."""
    if host := values.text("host").strip():
        return host
    query = UNFIT.sub("-", values.own("queryName")).strip("-")
    return f"spark-{query}" if query else ""


def processor_options(tenancy: Tenancy) -> ProcessorOptions:
    """The same as a processor's: a tenant is one."""
    return ProcessorOptions(
        interval_s=tenancy.interval_s,
        lease_s=tenancy.lease_s,
        renew_s=tenancy.renew_s,
        hand_off_s=tenancy.hand_off_s,
        stop_s=10.0,
        handler_timeout_s=None,  # a micro-batch may run for hours
        max_partitions=parse_strategy(tenancy.assignment).max_partitions,
    )
