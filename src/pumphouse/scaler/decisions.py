"""Computes the responses of a scaler: thresholds from metadata, a value from lags. Pure.

metadata -> Trigger, overview -> lags -> metric_value, is_active -> KEDA
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.processor.admin.overview import AHEAD, Overview, PartitionRow

GROUP, THRESHOLD, ACTIVATION = "consumerGroup", "lagThreshold", "activationLagThreshold"
DEFAULT_GROUP = "$Default"
DEFAULT_THRESHOLD = 1000
# KEDA computes with doubles, in which this number times the partitions of a hub is still exact.
THRESHOLD_MAX = 10**12
# The rule of Event Hubs. Without a slash, a group name cannot refer to the blobs of another hub.
GROUP_NAME = re.compile(r"\$default|[a-z0-9]([a-z0-9._-]{0,48}[a-z0-9])?", re.IGNORECASE | re.ASCII)
SHOWN_CHARS_MAX = 60  # of an invalid value in an error

Lags = tuple[int, ...]  # events that wait, one number per partition


class LagUnknown(PumphouseError):
    """A lag that cannot be computed. It must not count as 0, because KEDA would stop the hosts."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The consumer group and the thresholds in the metadata of a ScaledObject."""

    group: str = DEFAULT_GROUP
    lag_threshold: int = DEFAULT_THRESHOLD  # events per host
    activation_threshold: int = 0  # with more events the first host is started


def trigger_of(metadata: Mapping[str, str]) -> Trigger:
    """The trigger; OptionError if a value is invalid. Other keys are KEDA's own."""
    return Trigger(
        group_of(metadata.get(GROUP, DEFAULT_GROUP)),
        number_of(metadata, THRESHOLD, DEFAULT_THRESHOLD, 1),
        number_of(metadata, ACTIVATION, 0, 0),
    )


def group_of(name: str) -> str:
    if not GROUP_NAME.fullmatch(name):
        raise OptionError(
            f"invalid {GROUP} {shown(name)}: use $Default, or 1 to 50 letters, digits and . _ - "
            "with a letter or digit at both ends"
        )
    return name


def number_of(metadata: Mapping[str, str], key: str, default: int, least: int) -> int:
    text = metadata.get(key, str(default))
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(THRESHOLD_MAX))
    if not digits or not least <= int(text) <= THRESHOLD_MAX:
        raise OptionError(
            f"invalid {key} {shown(text)}: use a whole number of events from {least} to "
            f"{THRESHOLD_MAX}"
        )
    return int(text)


def shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN_CHARS_MAX else f"{value[:SHOWN_CHARS_MAX]}…")


def metric_name(group: str) -> str:
    """A name that Kubernetes accepts in the path of a request."""
    return f"pumphouse-lag-{re.sub('[^a-z0-9]+', '-', group.lower()).strip('-')}"


def lags_of(current: Overview) -> Lags:
    """The lag of each partition; LagUnknown if one of them is unknown."""
    if not current.lines:
        raise LagUnknown(f"hub {current.hub!r} has no partitions")
    return tuple(waiting(row, current.group) for row in current.lines)


def waiting(row: PartitionRow, group: str) -> int:
    """How many events wait: all of them if the checkpoint is of a deleted hub with this name."""
    if row.status == AHEAD:
        return max(0, row.end - row.first + 1)
    if row.lag is None:
        raise LagUnknown(
            f"the lag of partition {row.partition} of consumer group {group!r} is unknown: its "
            "checkpoint has an offset and no sequence number"
        )
    return row.lag


def metric_value(lags: Sequence[int], trigger: Trigger) -> int:
    """The lag of the group, limited to the value for which KEDA starts one host per partition.

    A partition has one owner, so further hosts would be idle.
    """
    return min(sum(lags), len(lags) * trigger.lag_threshold)


def is_active(lags: Sequence[int], trigger: Trigger) -> bool:
    return sum(lags) > trigger.activation_threshold
