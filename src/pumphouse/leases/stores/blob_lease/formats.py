"""Which of the legacy hosts a container belongs to, and how their blobs are named and written.

.NET, Java and Python hosts write `$Default/0` for the default group, the JavaScript host
`$default/0`. The keys of the bodies differ too. Hosts that write different blobs would own every
partition twice, so a container that has both is refused.

    names and bodies of blobs -> detected_format -> Format -> LeasedBlobs, BlobLeaseStore
                                 ^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pumphouse.errors import StoreError
from pumphouse.leases.stores.blob_lease.body import Spelling

Format = Literal["net", "java", "javascript", "python"]
FORMATS: tuple[Format, ...] = ("net", "java", "javascript", "python")
SPELLING_OF: dict[Format, Spelling] = {
    "net": "net",
    "java": "java",
    "javascript": "java",
    "python": "python",
}
DEFAULT_GROUP, JAVASCRIPT_GROUP = "$Default", "$default"


def group_folder(group: str, fmt: Format) -> str:
    """The name of a group in the names of its blobs."""
    if fmt == "javascript" and group.lower() == JAVASCRIPT_GROUP:
        return JAVASCRIPT_GROUP
    return DEFAULT_GROUP if group.lower() == JAVASCRIPT_GROUP else group


def folders_of(group: str) -> tuple[str, ...]:
    """Every name that a group may have in the names of its blobs."""
    if group.lower() == JAVASCRIPT_GROUP:
        return DEFAULT_GROUP, JAVASCRIPT_GROUP
    return (group,)


def owner_key(fmt: Format) -> str:
    """The metadata key of the owner. The JavaScript host reads only the key in lower case."""
    return "owninghost" if fmt == "javascript" else "OWNINGHOST"


def has_members(fmt: Format) -> bool:
    """Whether the container may have member records.

    The JavaScript host treats every blob of the container as a partition.
    """
    return fmt != "javascript"


def detected_format(
    folders: Iterable[str],
    spellings: Iterable[Spelling | None],
    metadata_keys: Iterable[str],
    where: str,
) -> Format | None:
    """The format of the blobs of a group; None if there are none. StoreError if there are two."""
    present = set(folders)
    if {DEFAULT_GROUP, JAVASCRIPT_GROUP} <= present:
        raise StoreError(
            f"{where} has leases in two formats: {DEFAULT_GROUP}/ of .NET, Java or Python hosts or "
            f"of Pumphouse, and {JAVASCRIPT_GROUP}/ of JavaScript hosts. Each would own every "
            "partition: stop the hosts of one, and remove its blobs, or choose one with format="
        )
    if JAVASCRIPT_GROUP in present:
        return "javascript"
    known = {spelling for spelling in spellings if spelling is not None}
    if "java" in known and DEFAULT_GROUP not in present and "owninghost" in set(metadata_keys):
        return "javascript"
    spelled: tuple[Format, ...] = ("net", "java", "python")
    return next((fmt for fmt in spelled if fmt in known), "net" if present else None)
