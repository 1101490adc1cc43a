-- Lanes: what most exchanges do not need. See lanes.lua.
local POSITION = '%07.0f%015.0f%016.0f'
-- Node's changePriority and moveToDelayed take any number. A longer one would move the id in the member. The second one is
-- NEVER_MS of core/due.py.
local MAX_PRIORITY, MAX_DUE = 9999999, 253370764800000

local function priority_of(member)
  return tonumber(string.sub(member, 1, 7))
end

local function tell(...)
  redis.pcall('XADD', Q .. ':events', '*', 'event', ...)
end

-- The position of a job in its lane: its priority, when it joined the lane or may run, its number.
local function position_of(priority, due, number)
  priority = math.max(0, math.min(tonumber(priority) or 0, MAX_PRIORITY))
  return string.format(POSITION, priority, math.min(due, MAX_DUE), tonumber(number) or 0)
end

-- A job loses its slot. The caller writes its field jmj.
local function lose_slot(slot)
  call('ZREM', slots_key(), slot)
  if has('begun') then
    call('ZREM', begun_key(), slot)
  end
end

-- The same, and its place in the order of the lane.
local function leave(lane, id, jmj)
  local member = position_in(jmj) .. id
  lose_slot(slot_of(lane, member))
  call('ZREM', held_key(lane), member)
  note(lane, false)
end

-- Notes whether a lane has more slots than its limit allows.
local function note_over(lane, limit)
  local over = Q .. ':jobmill:lanes:over'
  if limit and count_slots(lane) > limit then
    call('SADD', over, lane)
    there[over] = true
  elseif has('over') then
    call('SREM', over, lane)
  end
end

-- A job is held by its lane alone. prev: the list or set that it was taken from, "" for none; nil where it is in
-- waiting-children already.
local function stand(lane, id, position, due, prev)
  if prev then
    call('ZADD', Q .. ':waiting-children', now_text, id)
    tell('waiting-children', 'jobId', id, unpack(prev ~= '' and {'prev', prev} or {}))
  end
  call('ZADD', held_key(lane), due > now and due or 0, position .. id)
  if due > now then
    next_at(lane, due)
  end
  note(lane, true)
end

-- A job joins the order of its lane, and loses its slot.
local function join(id, lane, due, prev)
  local key = Q .. ':' .. id
  local h = call('HMGET', key, 'jmj', 'priority', 'jm', 'jmh')
  if h[1] then
    leave(lane, id, h[1])
  end
  due = math.max(due, now)
  local position = position_of(h[2], due, h[3])
  call('HSET', key, 'jmj', position .. HAS_NONE, 'jmu', now_text, 'delay', math.max(0, due - now))
  if h[4] then
    call('HDEL', key, 'jmh')
  end
  local dependencies, latch = key .. ':dependencies', Q .. ':jobmill:hold'
  if call('EXISTS', dependencies) == 1 then
    -- Where it may run although others have not ended, the last of those must not free it.
    local others = call('SCARD', dependencies) - call('SISMEMBER', dependencies, latch)
    call(others > 0 and 'SADD' or 'SREM', dependencies, latch)
  end
  stand(lane, id, position, due, prev)
end

-- A job in waiting-children got a new jmh: it loses its slot, and stands in the order of its lane if nothing else holds it.
local function hold(id, lane)
  local key = Q .. ':' .. id
  local h = call('HMGET', key, 'jmj', 'jmh', 'defa')
  if h[1] then
    leave(lane, id, h[1])
    call('HSET', key, 'jmj', position_in(h[1]) .. HAS_NONE)
  end
  if not string.find(h[2] or '', '"by":["lane"]', 1, true) then
    return
  end
  local pending = call('SCARD', key .. ':dependencies') - call('SISMEMBER', key .. ':dependencies', Q .. ':jobmill:hold')
  if pending > 0 and not h[3] then
    call('ZADD', Q .. ':jobmill:lanes:blocked', now_text, id)
    return
  end
  local due = cjson.decode(h[2]).due or {}
  join(id, lane, tonumber(due.at_ms) or now + (tonumber(due.after_ms) or 0))
end

-- Whether a job with a lane stands in the order of its lane.
local function stands(id)
  local h = call('HMGET', Q .. ':' .. id, 'jmz', 'jmh', 'jmj')
  return h[1] and not h[2] and h[3] and call('ZSCORE', held_key(h[1]), position_in(h[3]) .. id) and true or false
end

-- A job has ended, or is removed.
local function gone(id)
  local h = redis.pcall('HMGET', Q .. ':' .. id, 'jmz', 'jmj')
  if not h.err and h[1] and h[2] then
    leave(h[1], id, h[2])
    call('HDEL', Q .. ':' .. id, 'jmj')
  end
end

-- A job that waits again keeps its slot.
local function keep(id, lane)
  local slot = slot_of(lane, position_in(call('HGET', Q .. ':' .. id, 'jmj') or '') .. id)
  if has('begun') and call('ZREM', begun_key(), slot) == 1 then
    call('ZADD', slots_key(), 0, slot)
  end
  note(lane, true)
end

-- A job runs without having been admitted: somebody has seized it, or Node has begun it.
local function take_slot(id, lane)
  local h = call('HMGET', Q .. ':' .. id, 'jmj', 'priority', 'jm')
  local position = position_in(h[1]) or position_of(h[2], now, h[3])
  call('HSET', Q .. ':' .. id, 'jmj', position .. HAS_SLOT)
  call('ZREM', held_key(lane), position .. id)
  begins(slot_of(lane, position .. id))
  note(lane, true)
end

local function reprioritize(id, lane, priority)
  local jmj = call('HGET', Q .. ':' .. id, 'jmj')
  if not jmj then
    return
  end
  local old = position_in(jmj)
  local position = string.format('%07.0f', priority) .. string.sub(old, 8)
  local from, to = slot_of(lane, old .. id), slot_of(lane, position .. id)
  for _, one in ipairs({{slots_key(), from, to}, {begun_key(), from, to}, {held_key(lane), old .. id, position .. id}}) do
    local score = call('ZSCORE', one[1], one[2])
    if score then
      call('ZREM', one[1], one[2])
      call('ZADD', one[1], score, one[3])
    end
  end
  call('HSET', Q .. ':' .. id, 'jmj', position .. string.sub(jmj, POSITION_LENGTH + 1))
  note(lane, true)
end

-- Takes an admitted job from where it waits, and returns where that was; nil if it runs, or is gone.
local function take_waiting(id)
  if call('EXISTS', Q .. ':' .. id .. ':lock') == 1 then
    return nil
  end
  for _, set in ipairs({'prioritized', 'delayed'}) do
    if call('ZREM', Q .. ':' .. set, id) == 1 then
      return set
    end
  end
  -- From the newest job on: those that got their slots last lose them first. The other end is far away in a long list.
  local found = call('LREM', Q .. ':wait', 1, id) == 1 or call('LREM', Q .. ':paused', 1, id) == 1
  return found and 'waiting' or nil
end

-- The last admitted job loses its slot, if its priority is above this one, and stands in its lane where it stood. False if
-- there is none. Those that run are marked on the way.
local function push_back(lane, above)
  local first, last = bounds_of(lane)
  while true do
    local slot = call('ZREVRANGEBYLEX', slots_key(), last, first, 'LIMIT', 0, 1)[1]
    if not slot then
      return false
    end
    local _, member = read_slot(slot)
    if priority_of(member) <= above then
      return false
    end
    local id = id_of(member)
    local prev = take_waiting(id)
    if prev then
      call('ZREM', slots_key(), slot)
      local position = position_in(member)
      call('HSET', Q .. ':' .. id, 'jmu', now_text, 'delay', 0, 'jmj', position .. HAS_NONE)
      stand(lane, id, position, tonumber(string.sub(member, 8, 22)), prev)
      return true
    end
    begins(slot)
  end
end

local function push_back_some(lane, count)
  for _ = 1, math.min(count, may_take) do
    if not push_back(lane, -1) then
      return
    end
    may_take = may_take - 1
  end
  if count > 0 and may_take <= 0 then
    next_at(lane, now)
  end
end

-- More urgent jobs take the slots of jobs that have not begun.
local function displace(lane, urgent)
  while urgent and may_give > 0 and may_take > 0 and push_back(lane, priority_of(urgent)) do
    may_take = may_take - 1
    give(lane, {urgent})
    urgent = call('ZRANGEBYSCORE', held_key(lane), 0, 0, 'LIMIT', 0, 1)[1]
  end
  if urgent and (may_give <= 0 or may_take <= 0) then
    next_at(lane, now)
  end
end

-- How many jobs are admitted. Those that run are marked.
local function count_admitted(lane)
  local count = 0
  for _, slot in ipairs(call('ZRANGEBYLEX', slots_key(), bounds_of(lane))) do
    local _, member = read_slot(slot)
    if call('EXISTS', Q .. ':' .. id_of(member) .. ':lock') == 1 then
      begins(slot)
    else
      count = count + 1
    end
  end
  return count
end

-- The rate: how many of the ready jobs get one of the free slots. They are counted in the window of the lane.
local function room_in_window(lane, rate, free, found)
  local ends, used = string.match(call('HGET', Q .. ':jobmill:lanes:window', lane) or '0 0', '^(%d+) (%d+)')
  ends, used = tonumber(ends), tonumber(used)
  if now >= ends then
    ends, used = now + rate.per_ms, count_admitted(lane)
  end
  local left = math.max(0, rate.count - used)
  local is_limited = left < free and call('ZCOUNT', held_key(lane), 0, 0) > left
  free = math.min(free, left)
  call('HSET', Q .. ':jobmill:lanes:window', lane,
    string.format('%.0f %.0f %.0f', ends, used + math.min(free, found), is_limited and ends or 0))
  if is_limited then
    next_at(lane, ends)
  end
  return free
end

-- A job with a slot that does not run: it loses the slot if it has ended, was put off, or is gone.
local function prune(lane, member)
  local id = id_of(member)
  local key = Q .. ':' .. id
  local h = redis.pcall('HMGET', key, 'jmz', 'finishedOn', 'jmj', 'jmd')
  if h.err then
    return  -- the claim puts it right
  end
  local is_final = h[2] and (call('ZSCORE', Q .. ':completed', id) or call('ZSCORE', Q .. ':failed', id))
  local is_current = h[1] == lane and position_in(h[3] or '') .. id == member
  if is_final or not is_current then
    lose_slot(slot_of(lane, member))
    if is_current then
      call('HSET', key, 'jmj', position_in(h[3]) .. HAS_NONE)
    end
    note(lane, true)
    return
  end
  local due = call('ZSCORE', Q .. ':delayed', id)
  due = due and math.floor(tonumber(due) / 4096)
  if due then
    -- What we put off has its time in jmd: that job has kept its slot, because the lane was strict.
    if due ~= tonumber(h[4]) and not limits_of(lane).strict then
      call('ZREM', Q .. ':delayed', id)
      join(id, lane, due, 'delayed')
    end
  elseif call('ZSCORE', Q .. ':waiting-children', id) then
    -- A run of Node waits for its children; or a process of an older version holds the job.
    local held = call('HGET', key, 'jmh') or string.format('{"by":[],"due":{"at_ms":%.0f}}', now)
    held = string.gsub(held, '"by":%[%]', '"by":["lane"]')
    call('HSET', key, 'jmh', (string.gsub(held, '"by":%["person"', '"by":["lane","person"')))
    call('SADD', key .. ':dependencies', Q .. ':jobmill:hold')
    hold(id, lane)
  end
end

-- The jobs of a lane that are due by now are ready. Returns how many.
local function promote(lane)
  local due = call('ZRANGEBYSCORE', held_key(lane), '(0', now_text, 'LIMIT', 0, ask.max_told)
  local ready = {}
  for _, member in ipairs(due) do
    ready[#ready + 1], ready[#ready + 2] = 0, member
    redis.pcall('HSET', Q .. ':' .. id_of(member), 'delay', '0')
  end
  if #ready > 0 then
    call('ZADD', held_key(lane), unpack(ready))
  end
  local first = call('ZRANGEBYSCORE', held_key(lane), '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] then
    call('ZADD', Q .. ':jobmill:lanes:next', first[2], lane)
  else
    call('ZREM', Q .. ':jobmill:lanes:next', lane)
  end
  note(lane, true)
  return #due
end

-- Jobs whose last dependency Node has ended join their lanes.
local function unblock(limit, before)
  for _, id in ipairs(call('ZRANGEBYSCORE', Q .. ':jobmill:lanes:blocked', '-inf', before, 'LIMIT', 0, limit)) do
    local h = redis.pcall('HMGET', Q .. ':' .. id, 'jmz', 'jmh')
    call('ZREM', Q .. ':jobmill:lanes:blocked', id)
    if not h.err and h[1] and h[2] and call('ZSCORE', Q .. ':waiting-children', id) then
      hold(id, h[1])
    end
  end
end

-- Looks at these lanes as look() does, and fills them, whatever their limits were. Returns whether that took back all slots
-- that it should.
local moved = 0
local function refresh(some)
  look(some)
  for _, lane in ipairs(some) do
    note(lane, true)
  end
  may_give, may_take = ask.max_told, ask.max_told
  fill_changed()
  moved = moved + 2 * ask.max_told - may_give - may_take
  return may_take > 0
end

-- Whether this call has kept the server busy for long enough.
local function is_enough()
  return moved >= ask.max_told
end

-- Goes on with a rule that was changed. Returns how many lanes follow it now, and whether there are more.
local function sweep(limit)
  local key = Q .. ':jobmill:lanes:sweep'
  local after = call('GET', key)
  if not after then
    return 0, false
  end
  local some = call('ZRANGEBYLEX', Q .. ':jobmill:lanes', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
  local done = 0
  while done < #some and not is_enough() do
    local last = math.min(#some, done + MAX_LOOKS)
    if refresh({unpack(some, done + 1, last)}) then
      done = last
    end
  end
  if done == #some and #some < limit then
    call('DEL', key)
    return done, false
  elseif done > 0 then
    call('SET', key, some[done])
  end
  return done, true
end

-- Twice a second: some lanes in which nobody waits, and what is rare.
local function tick(before)
  look(call('ZRANDMEMBER', Q .. ':jobmill:lanes', MAX_LOOKS))
  unblock(200, before)
  sweep(200)
end

-- The queue has lanes from now on, and scripts look at them.
local begun = {}
local function begin()
  if not begun[Q] and call('HSETNX', Q .. ':meta', 'jmlanes', '') == 1 then
    call('ZADD', Q .. ':jobmill:lanes:watch', 'NX', now_text, '')
  end
  begun[Q] = true
end
