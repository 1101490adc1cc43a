-- purge: removes finished jobs of ours that are past their retention. ask: limit, ages {set: ms}: the default retention.
-- Returns: their number, and whether there may be more.
--- include request
--- include events
--- include waiting
--- include repair
--- include add
--- include flows
--- include retention

-- Frees memory, and so must not be refused when maxmemory is reached: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
-- Node's obliterate has removed the queue, and knows no keys of ours.
if call('EXISTS', Q .. ':id', Q .. ':meta', Q .. ':wait', Q .. ':active', Q .. ':delayed', Q .. ':completed', Q .. ':failed')
  == 0 then
  -- It leaves jobs in waiting-children alone, where those are that lanes hold.
  local gone, seen = 0, 0
  for _, lane in ipairs(call('ZRANGE', Q .. ':jobmill:lanes', 0, ask.limit)) do
    local key = Q .. ':jobmill:lane:' .. lane
    seen = seen + 1
    for _, member in ipairs(call('ZRANGE', key, 0, ask.limit - gone - 1)) do
      local id = string.sub(member, 39)  -- see lanes.lua
      local h = redis.pcall('HMGET', job_key(id), 'deid', 'jmy')
      call('ZREM', key, member)
      if call('ZREM', Q .. ':waiting-children', id) == 1 then
        drop_deduplication(id, h[1])
        delete_keys(id, h[2])
        gone = gone + 1
      end
    end
    if gone >= ask.limit or seen > ask.limit then
      return {gone, 1}
    end
    call('DEL', key)
    call('ZREM', Q .. ':jobmill:lanes', lane)
  end
  for _, name in ipairs({'expiry', 'last', 'pinned', 'cancelled', 'purged', 'recurring', 'declared', 'rearm', 'window', 'feed', 'timed',
    'lanes', 'lanes:slots', 'lanes:begun', 'lanes:over', 'lanes:look', 'lanes:next', 'lanes:watch', 'lanes:blocked', 'lanes:own',
    'lanes:window', 'lanes:paused', 'lanes:sweep'}) do
    call('DEL', Q .. ':jobmill:' .. name)
  end
  return {gone, 0}
end
local removed, frees = 0, false
-- Whether the job was removed: others may wait for it.
local function remove(id, set)
  local h = redis.pcall('HMGET', job_key(id), 'name', 'atm', 'parentKey')
  if is_pinned(h[3]) then
    keep_pinned(id)
    return false
  end
  -- The jobs that it had waited for may go now.
  frees = frees or redis.pcall('HEXISTS', job_key(id), 'jmg') == 1
  feed_event('removed', id, h[1], math.max(1, tonumber(h[2]) or 1))
  forget(id, set)
  removed = removed + 1
  return true
end

local old = call('ZRANGEBYSCORE', Q .. ':jobmill:expiry', '-inf', now, 'LIMIT', 0, ask.limit)
for _, id in ipairs(old) do
  local _, set = rank_of(id)
  local ended = set and tonumber(call('ZSCORE', Q .. ':' .. set, id)) or now
  local age = tonumber(redis.pcall('HGET', job_key(id), 'jmk'))
  if age and ended + age > now then
    -- Node has retried it: its retention begins at its new end.
    call('ZADD', Q .. ':jobmill:expiry', ended + age, id)
  elseif set then
    remove(id, set)
  else
    call('ZREM', Q .. ':jobmill:expiry', id)
  end
end
local more = #old == ask.limit

-- Jobs with the default retention. Jobs that must stay are passed only once: `purged` has the instant up to which they were,
-- and how many jobs of that instant stay: thousands may have ended in one.
for set, age in pairs(ask.ages) do
  local from, stay = string.match(call('HGET', Q .. ':jobmill:purged', set) or '-inf 0', '^(%S+) (%d+)$')
  stay = tonumber(stay)
  local found = call('ZRANGEBYSCORE', Q .. ':' .. set, from, now - age, 'WITHSCORES', 'LIMIT', stay, ask.limit + 1)
  for i = 1, #found, 2 do
    if removed >= ask.limit then
      more = true
      break
    end
    local id = found[i]
    if not (redis.pcall('HEXISTS', job_key(id), 'jm') == 1 and not call('ZSCORE', Q .. ':jobmill:expiry', id)
      and not call('ZSCORE', Q .. ':jobmill:last', id) and remove(id, set)) then
      stay = (found[i + 1] == from and stay or 0) + 1
      from = found[i + 1]
    end
    call('HSET', Q .. ':jobmill:purged', set, from .. ' ' .. stay)
  end
  more = more or #found > 2 * ask.limit
end
local kept = call('ZRANGE', Q .. ':jobmill:last', 0, -1, 'WITHSCORES')
for i = 1, #kept, 2 do
  local rank, set = rank_of(kept[i])
  if not rank then
    call('ZREM', Q .. ':jobmill:last', kept[i])
  elseif rank >= tonumber(kept[i + 1]) then
    if removed >= ask.limit then
      more = true
      break
    end
    remove(kept[i], set)
  end
end
-- Jobs that stayed for others. Each call checks those that were not checked for longest.
local pinned = call('ZRANGEBYSCORE', Q .. ':jobmill:pinned', '-inf', now, 'LIMIT', 0, ask.limit - math.min(removed, ask.limit))
for _, id in ipairs(pinned) do
  local rank, set = rank_of(id)
  call('ZREM', Q .. ':jobmill:pinned', id)
  if rank then
    remove(id, set)
  end
end
-- Notes of jobs that Node has removed; at each purge some of them.
for _, id in ipairs(call('ZRANDMEMBER', Q .. ':jobmill:expiry', 100)) do
  if call('EXISTS', job_key(id)) == 0 then
    call('ZREM', Q .. ':jobmill:expiry', id)
  end
end
-- Notes of cancelled jobs that another program removed or retried.
local cancelled = call('ZRANGE', Q .. ':jobmill:cancelled', 0, 99, 'WITHSCORES')
for i = 1, #cancelled, 2 do
  if call('ZSCORE', Q .. ':failed', cancelled[i]) ~= cancelled[i + 1] then
    call('ZREM', Q .. ':jobmill:cancelled', cancelled[i])
  end
end
-- Entries of jobs that are not live any more: see policy.lua. Where they are most of a sample, there are more of them.
local sample, ended = call('HRANDFIELD', Q .. ':jobmill:timed', 200), 0
for _, deid in ipairs(sample) do
  local id = call('HGET', Q .. ':jobmill:timed', deid)
  if rank_of(id) or call('EXISTS', job_key(id)) == 0 then
    call('HDEL', Q .. ':jobmill:timed', deid)
    ended = ended + 1
  end
end
more = more or ended > 100
-- Windows of lanes that have ended: in the same way.
ended = 0
for _, lane in ipairs(call('HRANDFIELD', Q .. ':jobmill:lanes:window', 200)) do
  local ends = string.match(call('HGET', Q .. ':jobmill:lanes:window', lane), '^%d+')
  if tonumber(ends) <= now then
    call('HDEL', Q .. ':jobmill:lanes:window', lane)
    ended = ended + 1
  end
end
more = more or ended > 100
set_markers()
return {removed, (more or frees) and 1 or 0}
