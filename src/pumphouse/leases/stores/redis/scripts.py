"""The Lua scripts of a Redis store, and the keys that they use.

A script runs without any other command in between, so compare and set is one script. All keys of a
hub have the same hash tag, `{namespace/hub}`.

    RedisStore -> Keys, Scripts -> Connections.run
                  ^^^^^^^^^^^^^ this module

Values are text. The first words are what scripts compare, the rest is JSON that only Python reads:
numbers of Lua are exact to 2^53 only. Every time is read from the clock of the server.

    rows         hash   partition -> "ETAG WRITTEN_US JSON"
    checkpoints  hash   partition -> "ETAG EPOCH SEQUENCE JSON", numbers as 20 digits, or "-"
    beats        zset   host -> WRITTEN_US of its last heartbeat
    limits       hash   host -> its max_partitions
    groups       set    the consumer groups of the hub
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from pumphouse.leases.model import Group
from pumphouse.leases.stores.limits import ROWS_MAX, VALUE_BYTES_MAX

PREFIX = "pumphouse"
MEMBER_KEPT_S = 24 * 3600  # a host without a beat for this long is gone
NO_NUMBER = "-"
DIGITS = 20

# Microseconds since 1970, exact in a number of Lua.
CLOCK = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
"""

# What another program has written is bounded: a key by its number of values, and a value by its
# length. A value that is cut cannot be read, and is an error that names its row.
BOUNDS = f"""
local function cut(value) return string.sub(value, 1, {VALUE_BYTES_MAX + 1}) end
local function bounded(key, count, values)
  if count > {ROWS_MAX} then return redis.error_reply('TOOMANY ' .. key) end
  for index, value in ipairs(values) do values[index] = cut(value) end
  return values
end
local function hash(key)
  return bounded(key, redis.call('HLEN', key), redis.call('HGETALL', key))
end
local function members(key)
  return bounded(key, redis.call('ZCARD', key), redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'))
end
"""

_LIST = """
local result = {string.format('%.0f', now())}
for index, key in ipairs(KEYS) do
  local values = index == 2 and members(key) or hash(key)
  if values.err then return values end
  result[index + 1] = values
end
return result
"""

_CHECKPOINTS = """
return hash(KEYS[1])
"""

# SCARD is not used, so that access lists of earlier versions are still sufficient.
_GROUPS = """
local names = redis.call('SMEMBERS', KEYS[1])
return bounded(KEYS[1], #names, names)
"""

# Arguments: the group, the channel, then for each claim partition, etag before, new etag, owner,
# successor, state and JSON. Renewals send no notification.
_CLAIM = """
local results, written = {}, string.format('%.0f', now())
local function notify(partition, former, owner, successor, state)
  local known, row = pcall(cjson.decode, string.match(former, '^%S+ %S+ (.*)$') or '')
  if known and type(row) == 'table' then
    if row.owner == owner and row.successor == successor and row.state == state then return end
    former = row.owner
  end
  -- Not call: the row is written, whether this user may publish or not.
  redis.pcall('PUBLISH', ARGV[2], cjson.encode({partition, former, owner, successor}))
end
for at = 3, #ARGV, 7 do
  local partition, before = ARGV[at], ARGV[at + 1]
  local stored = redis.call('HGET', KEYS[1], partition)
  local etag = stored and (string.match(stored, '^%S+') or '?') or ''
  if etag == before then
    redis.call('HSET', KEYS[1], partition, ARGV[at + 2] .. ' ' .. written .. ' ' .. ARGV[at + 6])
    if stored then
      notify(partition, stored, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
    else
      redis.call('SADD', KEYS[2], ARGV[1])
    end
    table.insert(results, 1)
  else
    table.insert(results, cut(stored or ''))
  end
end
table.insert(results, string.format('%.0f', now()))
return results
"""

# Arguments: the group, partition, etag before, whether it may go back, then etag, epoch, sequence
# and JSON. As texts, numbers of 20 digits have the same order as the numbers.
_CHECKPOINT = """
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local etag, epoch, sequence = '', '', '-'
if stored then etag, epoch, sequence = string.match(stored, '^(%S+) (%S+) (%S+) ') end
local forward = epoch and epoch <= ARGV[6]
  and (sequence == '-' or (ARGV[7] ~= '-' and sequence <= ARGV[7]))
if (etag or '?') ~= ARGV[3] or not (forward or ARGV[4] == '1') then return cut(stored or '') end
redis.call('HSET', KEYS[1], ARGV[2], table.concat({ARGV[5], ARGV[6], ARGV[7], ARGV[8]}, ' '))
if not stored then redis.call('SADD', KEYS[2], ARGV[1]) end
return 1
"""

_BEAT = """
local written = now()
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', written - ARGV[3] * 1000000)) do
  redis.call('ZREM', KEYS[1], name)
  redis.call('HDEL', KEYS[2], name)
end
redis.call('ZADD', KEYS[1], string.format('%.0f', written), ARGV[1])
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
end
return 1
"""

_LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
"""

# Empty if the user may not read it.
_POLICY = """
local info = redis.pcall('INFO', 'memory')
if type(info) ~= 'string' then return {'', '0'} end
return {
  string.match(info, 'maxmemory_policy:(%S+)') or '',
  string.match(info, '\\nmaxmemory:(%d+)') or '0'
}
"""


@dataclass(frozen=True)
class Script:
    """A script, and the name under which the server keeps it."""

    text: str

    @cached_property
    def digest(self) -> str:
        # The protocol prescribes SHA-1.
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """The scripts of a store that reads the time with the function `now` of `clock`."""

    def __init__(self, clock: str = CLOCK) -> None:
        self.list = Script(clock + BOUNDS + _LIST)
        self.claim = Script(clock + BOUNDS + _CLAIM)
        self.beat = Script(clock + _BEAT)
        self.checkpoints = Script(BOUNDS + _CHECKPOINTS)
        self.checkpoint = Script(BOUNDS + _CHECKPOINT)
        self.leave = Script(_LEAVE)
        self.groups = Script(BOUNDS + _GROUPS)
        self.policy = Script(_POLICY)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a group. The case of its names does not matter."""

    prefix: str
    group: Group

    @property
    def rows(self) -> str:
        return self._key("rows")

    @property
    def checkpoints(self) -> str:
        return self._key("checkpoints")

    @property
    def beats(self) -> str:
        return self._key("beats")

    @property
    def limits(self) -> str:
        return self._key("limits")

    @property
    def groups(self) -> str:
        return f"{self._of_hub}:groups"

    @property
    def channel(self) -> str:
        """Channels are common to all databases of a server; the name of a group is not secret."""
        return self._key("changes")

    def _key(self, kind: str) -> str:
        return f"{self._of_hub}:{plain(self.group.name)}:{kind}"

    @property
    def _of_hub(self) -> str:
        return f"{self.prefix}:{{{plain(self.group.namespace)}/{plain(self.group.hub)}}}"


def plain(name: str) -> str:
    """A name in lower case, without the characters that separate parts of a key."""
    return quote(name.lower(), safe="$")


def digits(number: int | None) -> str:
    """A number that is not negative, as text. The texts have the same order as the numbers."""
    return NO_NUMBER if number is None else f"{number:0{DIGITS}d}"
