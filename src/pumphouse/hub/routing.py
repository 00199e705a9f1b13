"""Routing: the partition of a key, and the parts of a link's address.

A partition key is hashed as the service hashes it, so that a key has the same partition here and in
the cloud. An address is the text in the source or target of an attach. Parsing does not check
whether its hub, group or partition exists.

    attach -> parse_address -> links          batch -> partition_for -> log
              ^^^^^^^^^^^^^ this module                 ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from pumphouse.errors import AmqpError, OptionError

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
        return {
            "cbs": "$cbs",
            "management": f"{self.hub}/$management".lstrip("/"),
            "hub": self.hub,
            "partition": f"{self.hub}/Partitions/{self.partition}",
            "publisher": f"{self.hub}/Publishers/{self.publisher}",
            "receiver": f"{self.hub}/ConsumerGroups/{self.group}/Partitions/{self.partition}",
        }[self.kind]


# Hub names may contain slashes, so an address is matched from its right end: `.+` is greedy.
# The first pattern that matches counts, because a group may be called "publishers".
_PATTERNS: Mapping[Kind, str] = {
    "cbs": r"\$cbs",
    "management": r"(?:(?P<hub>.+)/)?\$management",
    "receiver": r"(?P<hub>.+)/ConsumerGroups/(?P<group>.+)/Partitions/(?P<partition>[^/]+)",
    "partition": r"(?P<hub>.+)/Partitions/(?P<partition>[^/]+)",
    "publisher": r"(?P<hub>.+)/Publishers/(?P<publisher>[^/]+)",
    "hub": r"(?P<hub>.+)",
}
_ANY_CASE = re.IGNORECASE | re.DOTALL
_GROUP = re.compile(r"(?P<hub>.+)/ConsumerGroups/.+", _ANY_CASE)
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_./-]*[A-Za-z0-9])?")
_PATH_WORDS = frozenset({"consumergroups", "partitions", "publishers"})


def path_of(text: str) -> str:
    """The path of an address or resource, without scheme, authority and outer slashes."""
    return _AUTHORITY.sub("", text.strip(), count=1).strip("/")


def parse_address(text: str) -> Address:
    """Parse the address of an attach; AmqpError if it is invalid."""
    address = _match(path_of(text))
    if address is None:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"The supplied address '{text}' is invalid. Expected 'hub', 'hub/Partitions/0', "
            "'hub/Publishers/name', 'hub/ConsumerGroups/group/Partitions/0', 'hub/$management' "
            "or '$cbs'.",
        )
    # No hub or group can have such a name, so it is refused like a hub that does not exist.
    if not _could_exist(address):
        raise AmqpError("amqp:not-found", f"The messaging entity '{text}' could not be found.")
    return address


def hub_of(path: str) -> str:
    """The hub in a path such as "hub/Partitions/0"; without such a suffix, the whole path."""
    group = _GROUP.fullmatch(path)
    if group and not _has_path_word(group["hub"]):
        return group["hub"]
    address = _match(path)
    return address.hub if address else path


def check_hub_name(name: str) -> None:
    """OptionError unless a hub may have this name."""
    if not _is_name(name) or len(name) > HUB_NAME_CHARS_MAX:
        raise _bad_name("a hub", name, HUB_NAME_CHARS_MAX)


def check_group_name(name: str) -> None:
    """OptionError unless a consumer group may have this name."""
    if not _is_group_name(name) or len(name) > GROUP_NAME_CHARS_MAX:
        raise _bad_name("a consumer group", name, GROUP_NAME_CHARS_MAX)


def _match(path: str) -> Address | None:
    for kind, pattern in _PATTERNS.items():
        if match := re.fullmatch(pattern, path, _ANY_CASE):
            parts = {name: unquote(part or "") for name, part in match.groupdict().items()}
            return None if _is_ambiguous(**parts) else Address(kind, **parts)
    return None


def _is_ambiguous(hub: str = "", partition: str = "", publisher: str = "", group: str = "") -> bool:
    """Whether a decoded part contains a slash that makes it another path."""
    return _has_path_word(hub) or "/" in partition + publisher


def _could_exist(address: Address) -> bool:
    hub, group = address.hub, address.group
    return (not hub or _is_name(hub)) and (not group or _is_group_name(group))


def _has_path_word(name: str) -> bool:
    """Whether a name contains a part of an address, such as "eh/Publishers/x/more".

    A name that is only such a word is unambiguous, and valid.
    """
    return "/" in name and not _PATH_WORDS.isdisjoint(name.lower().split("/"))


def _is_name(name: str) -> bool:
    # With empty or dotted segments, a path made from the name could leave its directory.
    has_plain_segments = {"", ".", ".."}.isdisjoint(name.split("/"))
    return bool(_NAME.fullmatch(name)) and has_plain_segments and not _has_path_word(name)


def _is_group_name(name: str) -> bool:
    return name.lower() == DEFAULT_GROUP.lower() or _is_name(name)


def _bad_name(what: str, name: str, chars_max: int) -> OptionError:
    return OptionError(
        f"invalid name {name!r} for {what}: use 1 to {chars_max} letters, digits and . _ - / with "
        "a letter or digit at both ends and no path word such as Partitions between slashes"
    )
