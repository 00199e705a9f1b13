"""The names of blobs in a container.

The current official SDKs store a row under `{namespace}/{hub}/{group}/ownership/{partition}` and a
checkpoint beside it, all in lower case. We add two kinds: a member for each host, and a stamp for
each checkpoint that has an epoch and no position. All kinds have the same prefix, so one listing
of `{namespace}/{hub}/{group}/` returns them all. The SDKs list one kind at a time and never see
ours.

    Group, partition -> blob name -> Container        listed blob -> kind and name -> row
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from pumphouse.errors import OptionError
from pumphouse.leases.model import Group

OWNERSHIP, CHECKPOINT = "ownership", "checkpoint"
STAMP, MEMBER = "stamp", "member"  # not used by the SDKs
KINDS = (OWNERSHIP, CHECKPOINT, STAMP, MEMBER)

_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


def checked_container(name: str) -> str:
    """The name of a container; OptionError if the service does not allow it."""
    if not _CONTAINER.fullmatch(name):
        raise OptionError(
            f"invalid container name {name!r}: use 3 to 63 lower-case letters, digits and "
            "single hyphens, such as 'checkpoints'"
        )
    return name


def case_preserving_prefix(group: Group) -> str:
    """The prefix of a group's blobs. Upper and lower case are kept."""
    if "/" in group.name or not (group.namespace and group.hub and group.name):
        raise OptionError(
            f"invalid consumer group {group}: namespace, hub and group must not be empty, and the "
            "group must not contain a slash"
        )
    return f"{group}/"


def prefix(group: Group) -> str:
    """The prefix of a group's blobs, in lower case. Two groups never share a blob."""
    return case_preserving_prefix(group).lower()


def ownership(group: Group, partition: str) -> str:
    return f"{prefix(group)}{OWNERSHIP}/{checked_partition(partition).lower()}"


def checkpoint(group: Group, partition: str) -> str:
    return f"{prefix(group)}{CHECKPOINT}/{checked_partition(partition).lower()}"


def stamp(group: Group, partition: str) -> str:
    return f"{prefix(group)}{STAMP}/{checked_partition(partition).lower()}"


def member(group: Group, name: str) -> str:
    return f"{prefix(group)}{MEMBER}/{escaped(name)}"


def checked_partition(partition: str) -> str:
    if not partition or "/" in partition:
        raise OptionError(f"invalid partition id {partition!r}: use an id such as '0'")
    return partition


def kind_and_name(name: str, prefix: str) -> tuple[str, str]:
    """The kind and the last segment of a blob's name, such as ("ownership", "7").

    Both are empty if the blob is not a row.
    """
    kind, _, rest = name.removeprefix(prefix).partition("/")
    if kind.lower() not in KINDS or not rest or "/" in rest:
        return "", ""
    return kind.lower(), rest


def escaped(name: str) -> str:
    """A host's name as one segment of a blob's name. Case is kept."""
    if not name:
        raise OptionError("the name of a host must not be empty: give every host its own name")
    # URL libraries rewrite a segment of dots, and one that ends in a dot.
    quoted = quote(name, safe="")
    rest = quoted.lstrip(".")
    middle = rest.rstrip(".")
    return "%2E" * (len(quoted) - len(rest)) + middle + "%2E" * (len(rest) - len(middle))


def unescaped(segment: str) -> str:
    return unquote(segment)
