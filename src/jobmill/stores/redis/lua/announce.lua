-- announce: the card of a worker, and what it counted since. KEYS[1]: what all keys here begin with, in one slot.
-- ask: id, card (JSON), announcement, leaves, tallies [[step, start, queue and name, counts (flat), texts (flat)]], kept {step:
--   ms}, card_kept, linger. Without an id, only what is too old is removed.
-- Returns: whether the worker must stop.
--- include short_request

local CARDS, NUMBERS, SEEN, STOPS = Q .. ':workers', Q .. ':announcements', Q .. ':seen', Q .. ':stops'
-- Each announcement has 20 groups of errors at most. Of an hour, this many are enough to find the most frequent ones.
local MAX_FIELDS = 500

-- The text of a group of errors. The latest one stays.
local function write_text(key, field, text)
  local old = call('HGET', key, field)
  if not old or cjson.decode(old).last_ms <= cjson.decode(text).last_ms then
    call('HSET', key, field, text)
  end
end

local function add(step, start, member, counts, texts)
  local key = Q .. ':tally:' .. step .. ':' .. member
  local is_full, left_out = call('HLEN', key) >= MAX_FIELDS, {}
  for i = 1, #texts, 2 do
    if is_full and call('HEXISTS', key, texts[i]) == 0 then
      left_out['e' .. string.sub(texts[i], 2)] = true  -- the count of this group
    else
      write_text(key, texts[i], texts[i + 1])
    end
  end
  for i = 1, #counts, 2 do
    if not left_out[counts[i]] then
      call('HINCRBY', key, counts[i], counts[i + 1])
    end
  end
  call('PEXPIRE', key, ask.kept[step] + (ask.linger or 0))
  call('ZADD', Q .. ':tallies:' .. step, start, member)
end

for step, kept in pairs(ask.kept) do
  call('ZREMRANGEBYSCORE', Q .. ':tallies:' .. step, '-inf', now - kept)
end
local forgotten = call('ZRANGEBYSCORE', SEEN, '-inf', now - ask.card_kept, 'LIMIT', 0, 500)
if #forgotten > 0 then
  call('ZREM', SEEN, unpack(forgotten))
  call('HDEL', CARDS, unpack(forgotten))
  call('HDEL', NUMBERS, unpack(forgotten))
  call('SREM', STOPS, unpack(forgotten))
end
if not ask.id then
  return 0
end
if (tonumber(call('HGET', NUMBERS, ask.id)) or -1) < ask.announcement then
  for _, tally in ipairs(ask.tallies) do
    add(unpack(tally))
  end
  call('HSET', NUMBERS, ask.id, ask.announcement)
end
call('ZADD', SEEN, now, ask.id)
if ask.leaves then
  call('HDEL', CARDS, ask.id)
else
  call('HSET', CARDS, ask.id, ask.card)
end
return call('SISMEMBER', STOPS, ask.id)
