-- exchange: settles what is finished, then claims what is free; never a job that the same call settles.
-- ask: plain [[id, token, result, age: 0 is the default retention; and of a job with a lane: lane, position]], settle [settlement], not_these [id],
--   claim {n, token, ahead: whether it is a claim ahead, lease_ms, worker, names, skip: how many waiting jobs earlier calls have read, or nil,
--   scan: how many to read, or nil for 1,000, first_end: the first end of a lease, or nil}
--   texts: see flows.lua
-- Returns: answers to plain, answers to settle, claimed [id, hash before, crashed (see claim.lua), is older run], next due ms or -1, 1 if
--   only jobs with unknown names wait, 2 if a limit is reached, otherwise 0, whether the feed is on, how many jobs the next
--   call is to skip, or 0,
--   how many jobs were read after the last one that was taken, 1 if flush_outbox has something to do, otherwise 0.
--- include request

local P = Q .. ':'
local EVENTS, WAIT, ACTIVE = Q .. ':events', Q .. ':wait', Q .. ':active'
local plain, others, c = ask.plain, ask.settle, ask.claim
local plain_answers, answers, taken = {}, {}, {}
local not_these = {}
local ended = false

if #plain + #others > 0 and call('XLEN', EVENTS) >= max_events + 100 then
  call('XTRIM', EVENTS, 'MAXLEN', '~', max_events)
end

-- 1. Jobs of ours that succeeded at their first attempt and have no keys: all of them in a few steps. Measured with 50 in a
-- call: 21 us a job, one by one 32.
local freed = {}  -- jobs that waited for one of these, and for no other one any more
if lanes_rule then
--- include lane_module
end
if #plain > 0 then
  local locks, children = {}, {}
  for i = 1, #plain do
    local key = P .. plain[i][1]
    locks[i] = key .. ':lock'
    children[2 * i - 1], children[2 * i] = key .. ':dependencies', key .. ':unsuccessful'
  end
  local values = call('MGET', unpack(locks))
  local has_children = call('EXISTS', unpack(children)) > 0
  local done_locks, done, scored, expiring, by_parent, slots, owners = {}, {}, {}, {}, {}, {}, {}
  for i = 1, #plain do
    local s = plain[i]
    local id, token, result, age, lane = s[1], s[2], s[3], s[4], s[5]
    local key, value, n = P .. id, values[i], #token
    -- Read now: a flow may have got the job while it ran.
    local parent = redis.pcall('HGET', key, 'parentKey')
    not_these[id] = true
    -- The guard; as holds() in lease.lua.
    if not (value and string.sub(value, 1, n + 4) == 'jm:' .. token .. ':'
      and (not ask.linger or tonumber(string.sub(value, n + 5)) > now)) then
      plain_answers[i] = 'lost'
    elseif has_children or (parent and (type(parent) ~= 'string' or string.sub(parent, 1, 8) == 'jobmill:')) then
      -- It has children or a relay; or its key is no hash any more, and that error must not stop the others.
      others[#others + 1] = {id = id, token = token, state = 'succeeded', outcome = 'succeeded', errors = 0, crashes = 0,
        result = result, keep = {age = age ~= 0 and age or nil, default = age == 0}, answers_plain = i}
    elseif call('LREM', ACTIVE, -1, id) == 0 then
      plain_answers[i] = 'lost'
    else
      if lane and lanes_rule then
        call('HSET', key, 'finishedOn', now_text, 'returnvalue', result, 'atm', '1', 'jmj', s[6] .. '-')
        slots[#slots + 1] = lanes.slot_of(lane, s[6] .. id)
        if not owners[lane] then
          owners[#owners + 1] = lane
        end
        owners[lane] = (owners[lane] or 0) + 1
      else
        call('HSET', key, 'finishedOn', now_text, 'returnvalue', result, 'atm', '1')
      end
      if parent then
        local told = by_parent[parent] or {}
        by_parent[parent] = told
        told[#told + 1], told[#told + 2] = key, result
      end
      -- An error here would leave the job in no list: the claim reports a key that is no stream.
      redis.pcall('XADD', EVENTS, '*', 'event', 'completed', 'jobId', id, 'returnvalue', result, 'prev', 'active')
      local k = #done + 1
      done[k], done_locks[k] = id, locks[i]
      scored[2 * k - 1], scored[2 * k] = now_text, id
      if age ~= 0 then  -- see retention.lua
        expiring[#expiring + 1], expiring[#expiring + 2] = age and now + age or '+inf', id
        if age then
          call('HSET', key, 'jmk', age)
        end
      end
      plain_answers[i] = 'done'
    end
  end
  if #done > 0 then
    ended = true
    call('DEL', unpack(done_locks))
    call('ZADD', Q .. ':completed', unpack(scored))
    call('SREM', Q .. ':stalled', unpack(done))
    call('ZREM', Q .. ':jobmill:expiry', unpack(done))
  end
  if #expiring > 0 then
    call('ZADD', Q .. ':jobmill:expiry', unpack(expiring))
  end
  if #slots > 0 then
    lanes.free(slots, owners)
  end
  -- As tell() in flows.lua, for all jobs that one waits for.
  local told_all, pending_keys = {}, {}
  for parent, told in pairs(by_parent) do
    local dependencies, pending, results = parent .. ':dependencies', {}, told
    if #told == 2 then
      pending[1] = redis.pcall('SREM', dependencies, told[1]) == 1 and told[1] or nil
    else
      local children = {}
      for i = 1, #told, 2 do
        children[#children + 1] = told[i]
      end
      results = {}
      for i, is_pending in ipairs(redis.pcall('SMISMEMBER', dependencies, unpack(children))) do
        if is_pending == 1 then
          pending[#pending + 1] = children[i]
          results[#results + 1], results[#results + 2] = children[i], told[2 * i]
        end
      end
      if #pending > 0 then
        call('SREM', dependencies, unpack(pending))
      end
    end
    if #pending > 0 then
      redis.pcall('HSET', parent .. ':processed', unpack(results))
      told_all[#told_all + 1], pending_keys[#pending_keys + 1] = parent, dependencies
    end
  end
  -- One command says so where all of them have more dependencies, or none has.
  local still_wait = #told_all > 0 and call('EXISTS', unpack(pending_keys))
  for i = 1, #told_all do
    local count = still_wait == 0 and 0 or call('SCARD', pending_keys[i])
    -- One that only its lane holds now has a latch: see held.lua.
    if count == 0 or count == 1 and call('SISMEMBER', pending_keys[i],
      string.match(told_all[i], '^(.*):[^:]*$') .. ':jobmill:hold') == 1 then
      freed[#freed + 1] = told_all[i]
    end
  end
end
local has_released = false
if #freed > 0 and not (paused or feed_on) then
--- include freed
end

if lanes_rule and c and #others + #freed == 0 then
  lanes.advance(c.n)
end

-- 2. A claim from a queue without pause, limits and feed, while no delayed job is due and the next jobs have names that this
-- worker knows: without a single function, which makes a call for one job a sixth shorter. The first job that is anything
-- else goes back, and the general way below does the rest of the claim.
local first = c and call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
first = first and first[1] and math.floor(tonumber(first[2]) / 4096) or nil
if c and c.n > 0 and not c.skip and #others == 0 and #freed == 0 and #ask.not_these == 0
  and not (paused or concurrency or meta[3] or feed_on) and not (first and first <= now) then
  local lock = 'jm:' .. c.token .. ':' .. string.format('%.0f', now + c.lease_ms)
  local lock_ms = string.format('%.0f', c.lease_ms + (ask.linger or 0))
  local ids = call('RPOP', WAIT, c.n) or {}
  if #ids > 0 then
    -- At once: after an error below, recovery finds them there without a lock.
    call('LPUSH', ACTIVE, unpack(ids))
  end
  local names = c.names
  for i = 1, #ids do
    local id = ids[i]
    local h = redis.pcall('HGETALL', P .. id)
    local name, ats, is_special, marked, lane, jmj = nil, 0, not_these[id], false, nil, nil
    for k = 1, #h, 2 do
      local field = h[k]
      if field == 'name' then
        name = h[k + 1]
      elseif field == 'ats' then
        ats = tonumber(h[k + 1]) or 0
      elseif field == 'rjk' or field == 'jmn' or field == 'jmh' then
        is_special = true
      elseif field == 'jmw' then
        marked = true
      elseif field == 'jmz' then
        lane = h[k + 1]
      elseif field == 'jmj' then
        jmj = h[k + 1]
      end
    end
    if lane and (not lanes_rule or lanes.is_astray(lane, jmj)) then
      is_special = true
    end
    local room = name and names[name]
    if is_special or not room or room <= 0 then
      for k = #ids, i, -1 do
        call('LREM', ACTIVE, 1, ids[k])
        call('RPUSH', WAIT, ids[k])
      end
      break
    end
    names[name] = room - 1
    if c.ahead then
      call('HSET', P .. id, 'processedOn', now_text, 'pb', c.worker, 'ats', ats + 1, 'jmw', '1')
    else
      call('HSET', P .. id, 'processedOn', now_text, 'pb', c.worker, 'ats', ats + 1)
      if marked then
        call('HDEL', P .. id, 'jmw')
      end
    end
    call('SET', P .. id .. ':lock', lock, 'PX', lock_ms)
    call('XADD', EVENTS, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
    taken[i] = {id, h, 0, 0}
  end
  if #taken == c.n then
    local is_empty = call('LLEN', WAIT) == 0 and call('ZCARD', Q .. ':prioritized') == 0
    if not is_empty then
      call('ZADD', Q .. ':marker', 0, '0')
    end
    if lanes_rule then
      first = math.min(first or math.huge, lanes.next_ms() or math.huge)
      first = first < math.huge and first or nil
    end
    return {plain_answers, answers, taken, is_empty and (first or -1) or now, 0, 0, 0, 0, 0}
  end
  c.n = c.n - #taken
end

-- 3. The general way.
--- include events
--- include lease
--- include job_id
--- include waiting
--- include repair
--- include claim
waiting_grew = has_released

-- Measured with one slot: making these functions took 11 of 36 us of a call, and most calls need none of them.
local function rarely()
--- include add
--- include schedulers
--- include flows
--- include retention
--- include settle
  return settle, release_if_none_pending, function()
    return has_outbox
  end
end

local outbox = 0
if #others + #freed > 0 then
  local settle, release_if_none_pending, has_outbox = rarely()
  for _, dependent in ipairs(freed) do
    release_if_none_pending(dependent)
  end
  for i, s in ipairs(others) do
    not_these[resolve(s.id)] = true
    local answer = settle(s)
    if s.next_run then
      not_these[s.next_run] = true  -- to the port, the next run is the same job
    end
    if s.answers_plain then
      plain_answers[s.answers_plain] = answer
    else
      answers[i] = answer
    end
    ended = ended or (answer == 'done' and (s.state ~= 'waiting' or s.runs ~= nil))
  end
  outbox = has_outbox() and 1 or 0
  if lanes_rule and c then
    lanes.advance(c.n)
  end
end

local function nothing_waits()
  return call('LLEN', wait_key()) == 0 and call('ZCARD', Q .. ':prioritized') == 0
end

local function event_if_drained()
  if ended and nothing_waits() and call('LLEN', ACTIVE) == 0 then
    event('drained')
  end
end

if not c then
  -- Room in a full queue: a sleeping worker may claim the next job.
  waiting_grew = waiting_grew or (concurrency and ended)
  set_markers()
  event_if_drained()
  return {plain_answers, answers, {}, -1, 0, feed_on and 1 or 0, 0, 0, outbox}
end

for _, id in ipairs(ask.not_these) do
  not_these[id] = true
end
first = promote()
if lanes_rule then
  local next_ms = lanes.next_ms()
  first = first and next_ms and math.min(first, next_ms) or first or next_ms
end
local active = concurrency and call('LLEN', ACTIVE)
local max_taken, room, window_ends = max_claims(c, active)
local left, passed, beyond, fruitless = false, false, nil, 0
call('DEL', NOTHING)
if max_taken > 0 then
  make_lock(c)
  left, passed, beyond, fruitless = claim_waiting(c, max_taken + #taken, not_these, taken)
end

-- When claiming again may bring something; and a marker for other workers where something is left.
local next_due = -1
local is_empty = nothing_waits()
local is_full = concurrency and active + #taken >= concurrency
if room and #taken > 0 then
  room, window_ends = room_in_window()
end
-- Before the window ends a marker would wake workers for nothing, again and again.
waiting_grew = not is_empty and room ~= 0
set_markers()
if (not paused or resumes) and not is_full then
  next_due = first or -1
  if left or (not is_empty and not passed) then
    next_due = now
  end
  if #taken == 0 and next_due < 0 and not paused then
    event_if_drained()
  end
end
-- A full queue, too, has room again when a lease ends.
if #taken == 0 and c.first_end and (not paused or resumes) and call('LLEN', ACTIVE) > 0 then
  next_due = next_due < 0 and c.first_end or math.min(next_due, c.first_end)
end
if room == 0 and next_due >= 0 then
  next_due = math.max(next_due, window_ends)
end
if paused and next_due >= 0 then
  next_due = math.max(next_due, resumes)
end
if #taken == 0 and outbox == 0 then
--- include relay_queue
  outbox = call('EXISTS', relays(Q) .. ':wait')  -- Node has ended jobs that several others wait for
end
local only_foreign = passed and not left and #taken == 0 and not beyond
local why_no_more = only_foreign and 1 or (is_full or room == 0) and 2 or 0
return {plain_answers, answers, taken, next_due, why_no_more, feed_on and 1 or 0, beyond or 0, fruitless, outbox}
