"""Where does an event or a link go? Keys to partitions, addresses to nodes.

A partition key is hashed as the service hashes it, so that a key lands in the same partition here
and in the cloud. An address is what a client writes into the source or target of an attach; reading
one gives the node it means. Whether that hub, group or partition exists is for the hub to say.

    attach -> parse_address -> nodes          batch -> partition_for -> log
              ^^^^^^^^^^^^^ this module                 ^^^^^^^^^^^^^ and this
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

_WORD = 0xFFFFFFFF
# The rotations of Bob Jenkins' lookup3: six steps while there is more to read, seven at the end.
_MIX_TURNS = (4, 6, 8, 16, 19, 4)
_FINAL_TURNS = (14, 11, 25, 16, 4, 14, 24)


def partition_for(key: str, partitions: int) -> int:
    """The index of the partition that a key belongs to."""
    # .NET, Java and JavaScript keep the sign of the dividend, Python that of the divisor:
    # abs(a % n) there is abs(a) % n here.
    return abs(hash_code(key)) % partitions


def hash_code(key: str) -> int:
    """The service's hash of a partition key: 16 bits, signed."""
    low = _lookup3(key.encode()) & 0xFFFF
    return low - 0x10000 if low & 0x8000 else low


def _lookup3(data: bytes) -> int:
    """Jenkins' lookup3 with both seeds zero, its two words c and b joined by xor."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    if not data:
        return 0  # c ^ b of equal words; the closing steps are skipped for an empty key
    start = 0
    while len(data) - start > 12:
        a, b, c = _mix(*_add((a, b, c), data[start : start + 12]))
        start += 12
    _, b, c = _final(*_add((a, b, c), data[start:]))
    return c ^ b


def _add(words: tuple[int, int, int], block: bytes) -> tuple[int, int, int]:
    """Add up to twelve bytes, little-endian, to the three words; missing bytes count as zero."""
    a, b, c = (
        (word + int.from_bytes(block[at : at + 4], "little")) & _WORD
        for word, at in zip(words, (0, 4, 8), strict=True)
    )
    return a, b, c


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for turn in _MIX_TURNS:
        a, c = ((a - c) & _WORD) ^ _turned(c, turn), (c + b) & _WORD
        a, b, c = b, c, a  # each step is the same one, with the words in the next roles
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int, int]:
    for turn in _FINAL_TURNS:
        c = ((c ^ b) - _turned(b, turn)) & _WORD
        a, b, c = b, c, a
    # Seven steps leave the roles turned by one; the last word written is c.
    return c, a, b


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


@dataclass(frozen=True, slots=True)
class Address:
    """The node an address means. Names keep the client's spelling; compare them case-insensitively.

    A field that the kind does not use is empty. `hub` is also empty for "cbs", and for a
    "management" address that names no hub (the request then does).
    """

    kind: Kind
    hub: str = ""
    partition: str = ""
    publisher: str = ""
    group: str = ""

    @property
    def path(self) -> str:
        """The address in its plain form, as grants and error texts write it."""
        return {
            "cbs": "$cbs",
            "management": f"{self.hub}/$management".lstrip("/"),
            "hub": self.hub,
            "partition": f"{self.hub}/Partitions/{self.partition}",
            "publisher": f"{self.hub}/Publishers/{self.publisher}",
            "receiver": f"{self.hub}/ConsumerGroups/{self.group}/Partitions/{self.partition}",
        }[self.kind]


# Hub names may contain slashes, so an address is read from its right end: `.+` takes what it can.
# The first shape that fits wins, because a group may be called "publishers".
_SHAPES: Mapping[Kind, str] = {
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
    """The path of an address or resource, without scheme, authority and slashes around it."""
    return _AUTHORITY.sub("", text.strip(), count=1).strip("/")


def parse_address(text: str) -> Address:
    """Read the address of an attach; AmqpError if it can mean no node of any hub."""
    address = _read(path_of(text))
    if address is None:
        raise AmqpError(
            "com.microsoft:argument-error",
            f"The supplied address '{text}' is invalid. Expected 'hub', 'hub/Partitions/0', "
            "'hub/Publishers/name', 'hub/ConsumerGroups/group/Partitions/0', 'hub/$management' "
            "or '$cbs'.",
        )
    # No hub or group can bear such a name, so the answer is the one for a name nobody has.
    if not _could_exist(address):
        raise AmqpError("amqp:not-found", f"The messaging entity '{text}' could not be found.")
    return address


def hub_of(path: str) -> str:
    """The hub that a path lies in: the path itself, unless it ends in a part of a hub."""
    group = _GROUP.fullmatch(path)
    if group and not _has_path_word(group["hub"]):
        return group["hub"]
    address = _read(path)
    return address.hub if address else path


def check_hub_name(name: str) -> None:
    """OptionError unless a hub may have this name."""
    if not _is_name(name) or len(name) > HUB_NAME_CHARS_MAX:
        raise _bad_name("a hub", name, HUB_NAME_CHARS_MAX)


def check_group_name(name: str) -> None:
    """OptionError unless a consumer group may have this name."""
    if not _is_group_name(name) or len(name) > GROUP_NAME_CHARS_MAX:
        raise _bad_name("a consumer group", name, GROUP_NAME_CHARS_MAX)


def _read(path: str) -> Address | None:
    for kind, shape in _SHAPES.items():
        if found := re.fullmatch(shape, path, _ANY_CASE):
            parts = {name: unquote(part or "") for name, part in found.groupdict().items()}
            return None if _is_muddled(**parts) else Address(kind, **parts)
    return None


def _is_muddled(hub: str = "", partition: str = "", publisher: str = "", group: str = "") -> bool:
    """Whether a part, once decoded, reaches over the slash where it should have ended."""
    return _has_path_word(hub) or "/" in partition + publisher


def _could_exist(address: Address) -> bool:
    hub, group = address.hub, address.group
    return (not hub or _is_name(hub)) and (not group or _is_group_name(group))


def _has_path_word(name: str) -> bool:
    """Whether a name would be taken for part of an address ("eh/Publishers/x/more" is no hub).

    A name that is nothing but such a word can be told apart, and is allowed.
    """
    return "/" in name and not _PATH_WORDS.isdisjoint(name.lower().split("/"))


def _is_name(name: str) -> bool:
    # An empty or dotted segment would walk up or out of a directory named after the hub.
    tidy = {"", ".", ".."}.isdisjoint(name.split("/"))
    return bool(_NAME.fullmatch(name)) and tidy and not _has_path_word(name)


def _is_group_name(name: str) -> bool:
    return name.lower() == DEFAULT_GROUP.lower() or _is_name(name)


def _bad_name(what: str, name: str, chars_max: int) -> OptionError:
    return OptionError(
        f"invalid name {name!r} for {what}: use 1 to {chars_max} letters, digits and . _ - / with "
        "a letter or digit at both ends and no path word such as Partitions between slashes"
    )
