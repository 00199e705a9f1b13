"""Routing: the partition of a key, and the parts of a link's address.

A partition key is hashed as the service hashes it, so that a key has the same partition here and in
the cloud. An address is the text in the source or target of an attach. Parsing does not check
whether its hub, group or partition exists.

    attach -> parse_address -> links          batch -> partition_for -> log
              ^^^^^^^^^^^^^ this module                 ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Literal
from urllib.parse import unquote

from pumphouse.errors import AmqpError, OptionError
from pumphouse.hub.limits.lengths import check_length, shortened

Kind = Literal["cbs", "management", "hub", "partition", "publisher", "receiver"]

HUB_NAME_CHARS_MAX = 256
GROUP_NAME_CHARS_MAX = 50
DEFAULT_GROUP = "$Default"

_MASK_32 = 0xFFFFFFFF
# The rotations of Bob Jenkins' lookup3: six steps for each full block, seven at the end.
_MIX_ROTATIONS = (4, 6, 8, 16, 19, 4)
_FINAL_ROTATIONS = (14, 11, 25, 16, 4, 14, 24)


def partition_for(key: str, partitions: int) -> int:
    """The index of the partition for a key."""
    # The SDKs for .NET, Java and JavaScript compute abs(a % n), where % keeps the sign of a.
    # Python's % keeps the sign of n, so the same result is abs(a) % n.
    return abs(hash_code(key)) % partitions


def hash_code(key: str) -> int:
    """The service's hash of a partition key: 16 bits, signed."""
    low = _lookup3(key.encode()) & 0xFFFF
    return low - 0x10000 if low & 0x8000 else low


def _lookup3(data: bytes) -> int:
    """Jenkins' lookup3 with both seeds zero, its two words c and b joined by xor."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK_32
    if not data:
        return 0  # c ^ b of equal words; the closing steps are skipped for an empty key
    start = 0
    while len(data) - start > 12:
        a, b, c = _mix(*_add_block((a, b, c), data[start : start + 12]))
        start += 12
    _, b, c = _final(*_add_block((a, b, c), data[start:]))
    return c ^ b


def _add_block(words: tuple[int, int, int], block: bytes) -> tuple[int, int, int]:
    """Add up to twelve bytes, little-endian, to the three words; missing bytes are zero."""
    a, b, c = (
        (word + int.from_bytes(block[at : at + 4], "little")) & _MASK_32
        for word, at in zip(words, (0, 4, 8), strict=True)
    )
    return a, b, c


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in _MIX_ROTATIONS:
        a, c = ((a - c) & _MASK_32) ^ _rotated(c, bits), (c + b) & _MASK_32
        a, b, c = b, c, a  # every step is the same, with the words in the next roles
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in _FINAL_ROTATIONS:
        c = ((c ^ b) - _rotated(b, bits)) & _MASK_32
        a, b, c = b, c, a
    # Seven steps leave the roles rotated by one; the last word written is c.
    return c, a, b


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK_32


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. Names keep the client's case; compare them case-insensitively.

    Fields that the kind does not use are empty. `hub` is empty for "cbs", and for a "management"
    address without a hub (the request then names it).
    """

    kind: Kind
    hub: str = ""
    partition: str = ""
    publisher: str = ""
    group: str = ""

    @property
    def path(self) -> str:
        """The address in its plain form, for grants and error texts."""
        match self.kind:
            case "cbs":
                return "$cbs"
            case "management":
                return f"{self.hub}/$management".lstrip("/")
            case "hub":
                return self.hub
            case "partition":
                return f"{self.hub}/Partitions/{self.partition}"
            case "publisher":
                return f"{self.hub}/Publishers/{self.publisher}"
            case "receiver":
                return f"{self.hub}/ConsumerGroups/{self.group}/Partitions/{self.partition}"


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?")
_SCHEME_CHARS = frozenset(ascii_letters + digits + "+.-")
_PATH_WORDS = frozenset({"consumergroups", "partitions", "publishers"})


def path_of(text: str) -> str:
    """The path of an address or resource, without scheme, authority and outer slashes."""
    path = text.strip()
    scheme, separator, rest = path.partition("://")
    if separator and scheme[:1].isalpha() and _SCHEME_CHARS.issuperset(scheme):
        path = rest.partition("/")[2]
    return path.strip("/")


def ancestors(path: str) -> Iterator[str]:
    """A path and all paths above it, up to the whole namespace, ""."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def parse_address(text: str) -> Address:
    """Parse the address of an attach; AmqpError if it is invalid."""
    check_length("address", text)
    address = _match(path_of(text), unquote)
    if address is None:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"The supplied address '{text}' is invalid. Expected 'hub', 'hub/Partitions/0', "
            "'hub/Publishers/name', 'hub/ConsumerGroups/group/Partitions/0', 'hub/$management' "
            "or '$cbs'.",
        )
    # No hub or group can have such a name, so it is refused like a hub that does not exist.
    if not _could_exist(address):
        raise AmqpError("amqp:not-found", not_found_text(text))
    return address


def not_found_text(resource: str) -> str:
    """The service's text for a hub, group or address that does not exist; clients know it."""
    return f"The messaging entity '{resource}' could not be found."


def hub_of(path: str) -> str:
    """The hub in a path such as "hub/Partitions/0"; without such a suffix, the whole path.

    The path is unescaped already: if it were unescaped again, "site%252Fdoors" would be in the hub
    "site/doors".
    """
    hub, _ = _split_group(path)
    if hub and not _has_path_word(hub):
        return hub
    address = _match(path, str)
    return address.hub if address else path


def check_hub_name(name: str) -> None:
    """OptionError unless a hub may have this name."""
    if len(name) > HUB_NAME_CHARS_MAX or not _is_name(name):
        raise OptionError(
            f"invalid name {shortened(name)!r} for a hub: use 1 to {HUB_NAME_CHARS_MAX} letters, "
            "digits and . _ - / with a letter or digit at both ends and no path word such as "
            "Partitions between slashes"
        )


def check_group_name(name: str, slashes: bool = False) -> None:
    """OptionError unless a consumer group may have this name.

    As in Event Hubs it has no slashes. `slashes` allows the names of groups that already exist:
    earlier versions of the hub accepted slashes.
    """
    has_slash = "/" in name and not slashes
    if len(name) > GROUP_NAME_CHARS_MAX or has_slash or not _is_group_name(name):
        raise OptionError(
            f"invalid name {shortened(name)!r} for a consumer group: use 1 to "
            f"{GROUP_NAME_CHARS_MAX} letters, digits and . _ - with a letter or digit at both ends"
        )


def _match(path: str, decode: Callable[[str], str]) -> Address | None:
    kind, parts = _split(path)
    names = {name: decode(part) for name, part in parts.items()}
    return None if not path or _is_ambiguous(**names) else Address(kind, **names)


def _split(path: str) -> tuple[Kind, dict[str, str]]:
    """The kind of a path and its parts. Hub names may have slashes, so its right end decides."""
    *front, last = path.split("/")
    if path.lower() == "$cbs":
        return "cbs", {}
    if last.lower() == "$management":
        return "management", {"hub": "/".join(front)}
    word, parent = front[-1].lower() if front else "", "/".join(front[:-1])
    if word == "partitions" and parent and last:
        hub, group = _split_group(parent)
        if group:
            return "receiver", {"hub": hub, "group": group, "partition": last}
        return "partition", {"hub": parent, "partition": last}
    if word == "publishers" and parent and last:
        return "publisher", {"hub": parent, "publisher": last}
    return "hub", {"hub": path}


def _split_group(path: str) -> tuple[str, str]:
    """Hub and group of "hub/ConsumerGroups/group"; two empty texts for a path without them.

    A name may contain the word ConsumerGroups too: the path is split at the last one.
    """
    segments = path.split("/")
    for at in range(len(segments) - 2, 0, -1):
        if segments[at].lower() == "consumergroups":
            hub, group = "/".join(segments[:at]), "/".join(segments[at + 1 :])
            # A part is empty only at an empty first or last segment: at most two attempts fail.
            if hub and group:
                return hub, group
    return "", ""


def _is_ambiguous(hub: str = "", partition: str = "", publisher: str = "", group: str = "") -> bool:
    """Whether a part contains a slash (%2F in the address) that would change its meaning."""
    return _has_path_word(hub) or "/" in partition + publisher


def _could_exist(address: Address) -> bool:
    hub, group = address.hub, address.group
    return (not hub or _is_name(hub)) and (not group or _is_group_name(group))


def _has_path_word(name: str) -> bool:
    """Whether a name with slashes contains a path word, such as "Publishers" in "eh/Publishers/x".

    A name without slashes is unambiguous, even if it is a path word.
    """
    return "/" in name and not _PATH_WORDS.isdisjoint(name.lower().split("/"))


def _is_name(name: str) -> bool:
    # With empty or dotted segments, a path made from the name could leave its directory.
    has_plain_segments = {"", ".", ".."}.isdisjoint(name.split("/"))
    return bool(_NAME.fullmatch(name)) and has_plain_segments and not _has_path_word(name)


def _is_group_name(name: str) -> bool:
    return name.lower() == DEFAULT_GROUP.lower() or _is_name(name)
