"""What the Redis store does on the server: one Lua script a call, each of which is one atomic step.

The layout, all under one hash tag so that it stays together:

    versions   hash       key -> "version deadline"; deadline is unix seconds with 17 digits (exact), empty for never
    values     hash       key -> value
    keys       sorted set every key with score 0, which orders them by their bytes
    deadlines  sorted set keys that expire, by deadline
    newest     string     the version of the newest commit
    totals     hash       counter -> "total deadline"
    ends       sorted set counters that expire, by deadline

Deadlines are our own and not `EXPIRE`, which knows milliseconds, one key at a time, and not the sorted sets.
"""

from __future__ import annotations

import hashlib

import msgspec

NAMES = ("versions", "values", "keys", "deadlines", "newest", "totals", "ends")

_PRELUDE = """
local VERSIONS, VALUES, NAMES, DEADLINES, NEWEST, TOTALS, ENDS = unpack(KEYS)

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function exact(number) return string.format('%.17g', number) end
local function whole(number) return string.format('%.0f', number) end

-- The number and the deadline of a row that has not expired, else nil.
local function live(row)
  if not row then return nil end
  local number, deadline = string.match(row, '^(%S+) (.*)$')
  if deadline ~= '' and tonumber(deadline) <= now then return nil end
  return number, deadline
end

local function after(ttl)
  if ttl == '' then return '' end
  return exact(now + tonumber(ttl))
end

local function expect_end(set, name, deadline)
  if deadline == '' then redis.call('ZREM', set, name) else redis.call('ZADD', set, deadline, name) end
end

local function expired(set, most)
  return redis.call('ZRANGEBYSCORE', set, '-inf', exact(now), 'LIMIT', 0, most)
end
"""

_GET = """
-- ARGV: now, key...  ->  for each key: {version, deadline, value} or nil
local answer = {}
for i, row in ipairs(redis.call('HMGET', VERSIONS, unpack(ARGV, 2))) do
  local version, deadline = live(row)
  answer[i] = version and {version, deadline, redis.call('HGET', VALUES, ARGV[i + 1])} or false
end
return answer
"""

_COMMIT = """
-- ARGV: now, then for each change: key, 'put' or 'delete', expected version or '', ttl or '', value
-- ->  {version}, or {0, index of the change whose expectation failed, version found}
for i = 2, #ARGV, 5 do
  if ARGV[i + 2] ~= '' then
    local found = live(redis.call('HGET', VERSIONS, ARGV[i])) or '0'
    if found ~= ARGV[i + 2] then return {0, (i - 2) / 5, tonumber(found)} end
  end
end
local function forget(name)
  redis.call('HDEL', VERSIONS, name)
  redis.call('HDEL', VALUES, name)
  redis.call('ZREM', NAMES, name)
  redis.call('ZREM', DEADLINES, name)
end
local version = redis.call('INCR', NEWEST)
for i = 2, #ARGV, 5 do
  local name = ARGV[i]
  if ARGV[i + 1] == 'delete' then
    forget(name)
  else
    local deadline = after(ARGV[i + 3])
    redis.call('HSET', VERSIONS, name, whole(version) .. ' ' .. deadline)
    redis.call('HSET', VALUES, name, ARGV[i + 4])
    redis.call('ZADD', NAMES, 0, name)
    expect_end(DEADLINES, name, deadline)
  end
end
for _, name in ipairs(expired(DEADLINES, 16 + 2 * (#ARGV - 1) / 5)) do forget(name) end
return {version}
"""

_SCAN = """
-- ARGV: now, start, end, most entries, most bytes  ->  {key, version, deadline, value} for each entry
local page, size, from = {}, 0, '[' .. ARGV[2]
local limit, largest = tonumber(ARGV[4]), tonumber(ARGV[5])
while true do
  local names = redis.call('ZRANGEBYLEX', NAMES, from, '(' .. ARGV[3], 'LIMIT', 0, limit)
  if #names == 0 then return page end
  for i, row in ipairs(redis.call('HMGET', VERSIONS, unpack(names))) do
    local version, deadline = live(row)
    if version then
      local value = redis.call('HGET', VALUES, names[i])
      page[#page + 1] = {names[i], version, deadline, value}
      size = size + #value
      if #page == limit or size >= largest then return page end
    end
  end
  from = '(' .. names[#names]
end
"""

_ADD = """
-- ARGV: now, then for each addition: counter, amount, ceiling, ttl or ''  ->  {index of the refused one or -1, total...}
local answer, ends = {-1}, {}
for i = 2, #ARGV, 4 do
  local total, deadline = live(redis.call('HGET', TOTALS, ARGV[i]))
  ends[#ends + 1] = deadline or false
  answer[#answer + 1] = tonumber(total or 0)
  local amount = tonumber(ARGV[i + 1])
  if answer[1] < 0 and amount > 0 and answer[#answer] + amount > tonumber(ARGV[i + 2]) then answer[1] = (i - 2) / 4 end
end
if answer[1] >= 0 then return answer end
for i = 2, #ARGV, 4 do
  local name, amount, at = ARGV[i], tonumber(ARGV[i + 1]), (i + 2) / 4
  local deadline = ends[at]
  local total = math.max(0, answer[at + 1] + amount)
  answer[at + 1] = total
  if deadline == '' and total == 0 then
    redis.call('HDEL', TOTALS, name)
  elseif deadline and amount ~= 0 then
    redis.call('HSET', TOTALS, name, whole(total) .. ' ' .. deadline)
  elseif not deadline and amount > 0 then
    deadline = after(ARGV[i + 3])
    redis.call('HSET', TOTALS, name, whole(total) .. ' ' .. deadline)
    expect_end(ENDS, name, deadline)
  end
end
for _, name in ipairs(expired(ENDS, 16 + 2 * (#ARGV - 1) / 4)) do
  redis.call('HDEL', TOTALS, name)
  redis.call('ZREM', ENDS, name)
end
return answer
"""


class Script(msgspec.Struct, frozen=True):
    """A script and the name that the server keeps it under."""

    text: str
    sha: str


def _script(body: str) -> Script:
    text = _PRELUDE + body
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


GET, COMMIT, SCAN, ADD = map(_script, (_GET, _COMMIT, _SCAN, _ADD))
