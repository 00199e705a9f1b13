"""Where in a container is which row kept?

The current official SDKs file a row under `{namespace}/{hub}/{group}/ownership/{partition}` and a
checkpoint beside it, all in lower case. Our members and stamps lie next to both, so that one
listing of `{namespace}/{hub}/{group}/` finds everything, and the SDKs, which list one kind at a
time, never see them.

    Group, partition -> blob name -> Container        listed blob -> kind and id -> row
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module         ^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from pumphouse.errors import OptionError
from pumphouse.leases.model import Group

OWNERSHIP, CHECKPOINT = "ownership", "checkpoint"
STAMP, MEMBER = "stamp", "member"  # ours
KINDS = (OWNERSHIP, CHECKPOINT, STAMP, MEMBER)

_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
# A segment of dots, or one that ends in a dot, is rewritten by URL libraries on the way.
_OUTER_DOTS = re.compile(r"^\.+|\.+$")


def checked_container(name: str) -> str:
    """The name of a container, if the service would allow it."""
    if not _CONTAINER.fullmatch(name):
        raise OptionError(
            f"{name!r} is no name of a container: use 3 to 63 lower-case letters, digits and "
            "single hyphens, such as 'checkpoints'"
        )
    return name


def given_prefix(group: Group) -> str:
    """What the blobs of a group begin with, in the case in which the names were given."""
    if "/" in group.name or not (group.namespace and group.hub and group.name):
        raise OptionError(
            f"{group} names no consumer group: namespace, hub and group must not be empty, and a "
            "group has no slash in its name"
        )
    return f"{group}/"


def prefix(group: Group) -> str:
    """What the blobs of a group begin with. Two groups never share a blob."""
    return given_prefix(group).lower()


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
        raise OptionError(f"{partition!r} is no partition id, such as '0'")
    return partition


def kind_and_id(name: str, under: str) -> tuple[str, str]:
    """What a listed blob is: ("ownership", "7"), say; two empty words if it is none of ours."""
    kind, _, rest = name.removeprefix(under).partition("/")
    if kind.lower() not in KINDS or not rest or "/" in rest:
        return "", ""
    return kind.lower(), rest


def escaped(name: str) -> str:
    """The name of a host as one segment of a blob's name; case is kept."""
    if not name:
        raise OptionError("a host needs a name")
    return _OUTER_DOTS.sub(lambda dots: "%2E" * len(dots[0]), quote(name, safe=""))


def unescaped(segment: str) -> str:
    return unquote(segment)
