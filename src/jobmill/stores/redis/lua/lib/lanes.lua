-- Lanes: jobs of one queue with the same key share limits. The rules are those of core/lanes.py; a test compares both.
-- This file has what every exchange needs, and lane_changes.lua the rest. Both need request.lua alone.
-- Keys, after <queue>:jobmill:
--   lane:<lane>   sorted set: the jobs that only the lane holds. Score 0: ready; otherwise the time at which they are.
--   lanes:slots   sorted set: the jobs with a slot, of all lanes; by name, as all scores are 0. So one command takes the slots
--                 of all jobs that a call settles, and one gives them to others. A member is the lane, "\0" (no name of a
--                 lane has it), and what is a member of lane:<lane>.
--   lanes:begun   the same, for jobs with a slot that are known to run.
--   lanes:over    set of lanes that have more slots than their limit: the slots that they free are not handed over.
--   lanes         sorted set of the lanes with jobs or settings; by name, as all scores are 0.
--   lanes:next    sorted set of lanes: when a later job is ready, or a rate allows more.
--   lanes:watch   sorted set of lanes with ready jobs: the time of the last look. Node tells nobody when it ends a job. The
--                 member "" is for what is done twice a second.
--   lanes:blocked sorted set of jobs that wait for their lane and for other jobs: the time of the last look.
--   lanes:look    the time of the next look at lanes.
--   lanes:own     hash: the settings of single lanes. lanes:window hash: the windows of rates: end, used, limited until.
--   lanes:paused  set of lanes. lanes:sweep: up to which lane a new rule was applied; see configure.lua.
-- A member of lane:<lane> is the position of the job in its lane, and its id. A job that only its lane holds is in
-- waiting-children, and has no jmh. One that others hold too has a jmh and the latch of held.lua.
-- The field jmj of a job is its position, and "+" if the job has a slot, otherwise "-". A claim reads the hash anyway: so it
-- knows who has a slot without a look at lanes:slots. What takes a job out of lanes:slots writes "-" in the same script.
local POSITION_LENGTH = 38
local HAS_SLOT, HAS_NONE = '+', '-'
local TICK_MS = 500
-- A look is at 16 lanes that had none for 100 ms. The next look is 10 ms later if it has found a job that Node runs or
-- has ended, otherwise 50 ms later. Measured with 1,000 lanes and 50 jobs in a call: a look in each call is 6 % of the
-- instructions of the server.
local MAX_LOOKS, LOOK_MS = 16, 100
local AFTER_NODE_MS, AFTER_NOTHING_MS = 10, 50
-- How many jobs with a slot a look checks.
local MAX_PRUNED = 20

local function held_key(lane)
  return Q .. ':jobmill:lane:' .. lane
end

local function id_of(member)
  return string.sub(member, POSITION_LENGTH + 1)
end

-- The position of a job, of its field jmj.
local function position_in(jmj)
  return jmj and string.sub(jmj, 1, POSITION_LENGTH)
end

local function slots_key()
  return Q .. ':jobmill:lanes:slots'
end

local function begun_key()
  return Q .. ':jobmill:lanes:begun'
end

local function slot_of(lane, member)
  return lane .. '\0' .. member
end

-- The lane and the member of a slot.
local function read_slot(slot)
  local length = string.find(slot, '\0', 1, true)
  return string.sub(slot, 1, length - 1), string.sub(slot, length + 1)
end

-- Where the slots of a lane are in the order of names.
local function bounds_of(lane)
  return '[' .. lane .. '\0', '(' .. lane .. '\1'
end

-- Whether a key of lanes exists: asked once. What makes one says so.
local there = {}
local function has(name)
  local key = Q .. ':jobmill:lanes:' .. name
  if there[key] == nil then
    there[key] = call('EXISTS', key) == 1
  end
  return there[key]
end

local function count_slots(lane)
  local first, last = bounds_of(lane)
  return call('ZLEXCOUNT', slots_key(), first, last) + (has('begun') and call('ZLEXCOUNT', begun_key(), first, last) or 0)
end

-- A job with a slot is known to run.
local function begins(slot)
  call('ZREM', slots_key(), slot)
  call('ZADD', begun_key(), 0, slot)
  there[begun_key()] = true
end

local rules = {}
local function rule_of_queue()
  local rule = rules[lanes_rule]
  if not rule then
    rule = lanes_rule ~= '' and cjson.decode(lanes_rule) or {}
    rules[lanes_rule] = rule
  end
  return rule
end

local function limits_of(lane)
  local rule = rule_of_queue()
  local text = has('own') and call('HGET', Q .. ':jobmill:lanes:own', lane)
  if not text then
    return rule
  end
  -- The values are JSON in JSON: see configure_lane.lua.
  local own, strict = cjson.decode(text), rule.strict
  if own.strict then
    strict = own.strict == 'true'
  end
  return {running = tonumber(own.running) or rule.running, rate = own.rate and cjson.decode(own.rate) or rule.rate,
    strict = strict, paused = own.pause ~= nil}
end

-- The lanes of each queue that have changed in this call, in order; and whether jobs have joined them or changed in them.
local changed = {}
local function note(lane, has_joined)
  local own = changed[Q] or {}
  changed[Q] = own
  if own[lane] == nil then
    own[#own + 1] = lane
  end
  own[lane] = own[lane] or has_joined
end

-- Notes when a lane must be filled again. Workers that sleep must hear of it.
local next_changed = {}
local function next_at(lane, ms)
  if call('ZADD', Q .. ':jobmill:lanes:next', 'LT', 'CH', string.format('%.0f', ms), lane) == 1 then
    next_changed[Q] = true
  end
end

-- These ready jobs get slots. They may be claimed when let_in() has moved them: for all lanes at once.
local given = {}
-- How many more jobs this call may give slots to, and take slots from: see MAX_RELEASED in core/flows.py. The others follow in
-- the next call.
local may_give, may_take = ask.max_told, ask.max_told
local function give(lane, members)
  may_give = may_give - #members
  local slots = {}
  for i = 1, #members do
    slots[2 * i - 1], slots[2 * i] = 0, slot_of(lane, members[i])
    given[#given + 1], given[#given + 2] = lane, members[i]
  end
  call('ZREM', held_key(lane), unpack(members))
  call('ZADD', slots_key(), unpack(slots))
end

local function let_in()
  local some = given
  given = {}
  local ids, keys, dependencies, waiting = {}, {}, {}, {}
  for i = 1, #some / 2 do
    ids[i] = id_of(some[2 * i])
    keys[i] = Q .. ':' .. ids[i]
    dependencies[i] = keys[i] .. ':dependencies'
  end
  local is_held = call('ZMSCORE', Q .. ':waiting-children', unpack(ids))
  local has_latches = call('EXISTS', unpack(dependencies)) > 0
  local events = Q .. ':events'
  for i, id in ipairs(ids) do
    local lane, member = some[2 * i - 1], some[2 * i]
    if is_held[i] then
      redis.pcall('HSET', keys[i], 'jmd', now_text,
        'jmj', string.sub(member, 1, POSITION_LENGTH) .. HAS_SLOT)
      redis.pcall('XADD', events, '*', 'event', 'waiting', 'jobId', id, 'prev', 'waiting-children')
      if has_latches then
        call('SREM', dependencies[i], Q .. ':jobmill:hold')
      end
      local priority = tonumber(string.sub(member, 1, 7))
      if priority > 0 then
        call('ZADD', Q .. ':prioritized', priority * 4294967296 + call('INCR', Q .. ':pc') % 4294967296, id)
      else
        waiting[#waiting + 1] = id
      end
    else
      -- Node has removed it: another one gets the slot.
      call('ZREM', slots_key(), slot_of(lane, member))
      note(lane, true)
    end
  end
  if #waiting > 0 then
    call('LPUSH', ask.v5 and paused and Q .. ':paused' or Q .. ':wait', unpack(waiting))
  end
  call('ZREM', Q .. ':waiting-children', unpack(ids))
end

-- Keeps the indexes of lanes. `has_ready`: whether ready jobs are left; `slots`: how many jobs have a slot.
local function index(lane, has_ready, slots, has_joined)
  if has_joined then
    call('ZADD', Q .. ':jobmill:lanes', 0, lane)
    if has_ready then
      call('ZADD', Q .. ':jobmill:lanes:watch', 'NX', now_text, lane)
    end
  end
  if not has_ready then
    call('ZREM', Q .. ':jobmill:lanes:watch', lane)
    if slots == 0 and call('EXISTS', held_key(lane)) + call('HEXISTS', Q .. ':jobmill:lanes:own', lane) == 0 then
      call('ZREM', Q .. ':jobmill:lanes', lane)
      call('ZREM', Q .. ':jobmill:lanes:next', lane)
    end
  end
end

-- What happens in a lane: `moves` in core/lanes.py.
local function fill(lane, has_joined)
  local limits, slots = limits_of(lane), count_slots(lane)
  local free = limits.running and limits.running - slots or math.huge
  if limits.paused or free < 0 then
    lanes.push_back_some(lane, limits.paused and slots or -free)
    lanes.note_over(lane, limits.running)
    index(lane, true, slots, has_joined)
    return
  elseif has('over') then
    call('SREM', Q .. ':jobmill:lanes:over', lane)
  end
  local is_cut = free > may_give
  free = math.max(0, math.min(free, may_give))
  local ready = call('ZRANGEBYSCORE', held_key(lane), 0, 0, 'LIMIT', 0, free + 1)
  if limits.rate and free > 0 and #ready > 0 then
    free = lanes.room_in_window(lane, limits.rate, free, #ready)
  end
  local count = math.min(free, #ready)
  if count > 0 then
    give(lane, count == #ready and ready or {unpack(ready, 1, count)})
    slots = slots + count
  end
  local has_ready = #ready > count
  if has_ready and is_cut and may_give <= 0 then
    next_at(lane, now)
  elseif has_ready and has_joined and not limits.strict then
    lanes.displace(lane, ready[count + 1])
  end
  index(lane, has_ready, slots, has_joined)
end

-- The slots that jobs have left, and their lanes: a list, and the number of slots by lane.
local freed = {}
local function free(slots, owners)
  local gone = call('ZREM', slots_key(), unpack(slots))
  if gone < #slots then
    gone = gone + call('ZREM', begun_key(), unpack(slots))
  end
  if gone == #slots then
    freed[Q] = owners
    return
  end
  for _, lane in ipairs(owners) do
    note(lane, false)
  end
end

-- Each slot that was freed goes to the first job that is ready in its lane: what fill() does where a lane has not changed
-- otherwise, in fewer steps and without counting. Measured with 50 jobs of 50 lanes in a call: 303,000 instructions of the
-- server for a job, with fill() 355,000, and without lanes 196,000.
local function hand_over()
  local own, noted = freed[Q], changed[Q] or {}
  freed[Q] = nil
  local is_countable = not rule_of_queue().rate and not has('sweep')
  local texts = has('own') and call('HMGET', Q .. ':jobmill:lanes:own', unpack(own)) or {}
  local over = has('over') and call('SMISMEMBER', Q .. ':jobmill:lanes:over', unpack(own)) or {}
  local slots, idle, has_later = {}, {}, {}
  for i, lane in ipairs(own) do
    local count = own[lane]
    if not is_countable or texts[i] or over[i] == 1 or noted[lane] ~= nil or count > may_give then
      note(lane, false)
    else
      local heads, later = call('ZPOPMIN', held_key(lane), count), {}
      for k = 1, #heads, 2 do
        if heads[k + 1] == '0' then
          count = count - 1
          may_give = may_give - 1
          slots[#slots + 1], slots[#slots + 2] = 0, slot_of(lane, heads[k])
          given[#given + 1], given[#given + 2] = lane, heads[k]
        else
          later[#later + 1], later[#later + 2] = heads[k + 1], heads[k]
        end
      end
      if #later > 0 then
        call('ZADD', held_key(lane), unpack(later))
        has_later[lane] = true
      end
      if count > 0 then
        idle[#idle + 1] = lane
      end
    end
  end
  if #slots > 0 then
    call('ZADD', slots_key(), unpack(slots))
  end
  if #idle == 0 then
    return
  end
  -- As index().
  call('ZREM', Q .. ':jobmill:lanes:watch', unpack(idle))
  local empty = {}
  for _, lane in ipairs(idle) do
    if not has_later[lane] and count_slots(lane) == 0 then
      empty[#empty + 1] = lane
    end
  end
  if #empty > 0 then
    call('ZREM', Q .. ':jobmill:lanes', unpack(empty))
    call('ZREM', Q .. ':jobmill:lanes:next', unpack(empty))
  end
end

-- Fills the lanes of this queue that have changed. A worker may have to wake.
local function fill_changed()
  local grew = false
  if freed[Q] then
    hand_over()
  end
  while changed[Q] or #given > 0 do
    local own = changed[Q] or {}
    changed[Q] = nil
    for _, lane in ipairs(own) do
      fill(lane, own[lane])
    end
    changed[Q] = nil  -- those that lost their slots have been seen
    if #given > 0 then
      grew = true
      let_in()
    end
  end
  if grew and not paused and not (concurrency and call('LLEN', Q .. ':active') >= concurrency) then
    call('ZADD', Q .. ':marker', 0, '0')
  end
  if next_changed[Q] and not paused then
    next_changed[Q] = nil
    local first = call('ZRANGE', Q .. ':jobmill:lanes:next', 0, 0, 'WITHSCORES')
    if first[2] then
      call('ZADD', Q .. ':marker', 'LT', first[2], '1')
    end
  end
end

-- Up to MAX_PRUNED slots of a lane; any of them, where it has more.
local function slots_at_random(key, lane)
  local first, last = bounds_of(lane)
  local found = call('ZRANGEBYLEX', key, first, last, 'LIMIT', 0, MAX_PRUNED)
  if #found < MAX_PRUNED then
    return found
  end
  -- Scripts get the same random numbers each time: the clock decides.
  local start = call('ZRANK', key, found[1]) + now * 7919 % (call('ZLEXCOUNT', key, first, last) - MAX_PRUNED + 1)
  return call('ZRANGE', key, start, start + MAX_PRUNED - 1)
end

-- A look at lanes in which jobs wait: Node, or a process of an older version, may have ended, put off or removed jobs that
-- have slots. For all lanes in a few steps, as almost always nothing has happened. Returns whether something had.
local function look(some)
  local members, locks, owners, has_found = {}, {}, {}, false
  for _, lane in ipairs(some) do
    local found = slots_at_random(slots_key(), lane)
    for _, slot in ipairs(has('begun') and slots_at_random(begun_key(), lane) or {}) do
      found[#found + 1] = slot
    end
    for _, slot in ipairs(found) do
      local _, member = read_slot(slot)
      members[#members + 1], owners[#owners + 1] = member, lane
      locks[#locks + 1] = Q .. ':' .. id_of(member) .. ':lock'
    end
    local running = #found < MAX_PRUNED and limits_of(lane).running
    if running and #found < running then
      note(lane, true)
    end
  end
  local ids, keys, lanes_of_ids, members_of_ids = {}, {}, {}, {}
  for i, lock in ipairs(#locks > 0 and call('MGET', unpack(locks)) or {}) do
    if lock then
      if string.sub(lock, 1, 3) ~= 'jm:' then
        -- Node tells nobody when it ends this job.
        has_found = true
        call('ZADD', Q .. ':jobmill:lanes:next', 'LT', now + TICK_MS, owners[i])
      end
    else
      ids[#ids + 1], lanes_of_ids[#ids + 1], members_of_ids[#ids + 1] = id_of(members[i]), owners[i], members[i]
      keys[#keys + 1] = Q .. ':' .. id_of(members[i])
    end
  end
  if #ids == 0 then
    return has_found
  end
  local all_exist = call('EXISTS', unpack(keys)) == #keys
  local sets = {}
  for i, set in ipairs({'completed', 'failed', 'delayed', 'waiting-children'}) do
    sets[i] = call('ZMSCORE', Q .. ':' .. set, unpack(ids))
  end
  for i = 1, #ids do
    if not all_exist or sets[1][i] or sets[2][i] or sets[3][i] or sets[4][i] then
      has_found = true
      lanes.prune(lanes_of_ids[i], members_of_ids[i])
    end
  end
  return has_found
end

-- Before a claim: what has become due, and some lanes that were not checked for a while.
local function advance(n)
  -- A claim must not be refused when maxmemory is reached: see lease.lua.
  call('DEL', Q .. ':jobmill:nothing')
  local promoted = 0
  for _, lane in ipairs(call('ZRANGEBYSCORE', Q .. ':jobmill:lanes:next', '-inf', now_text, 'LIMIT', 0, 100)) do
    if promoted < ask.max_told then
      promoted = promoted + lanes.promote(lane)
    end
  end
  fill_changed()  -- so that no look finds lanes with free slots
  local next_look = Q .. ':jobmill:lanes:look'
  local due = tonumber(call('GET', next_look) or nil)
  if due and now < due and due <= now + AFTER_NOTHING_MS then
    return
  end
  local watch, before = Q .. ':jobmill:lanes:watch', string.format('%.0f', now - LOOK_MS)
  local some, scores = {}, {'XX'}
  for _, lane in ipairs(call('ZRANGEBYSCORE', watch, '-inf', before, 'LIMIT', 0, math.min(MAX_LOOKS, n + 2))) do
    if lane == '' then
      lanes.tick(before)
      scores[#scores + 1], scores[#scores + 2] = now + TICK_MS - LOOK_MS, ''
    else
      some[#some + 1] = lane
      scores[#scores + 1], scores[#scores + 2] = now_text, lane
    end
  end
  if #scores > 1 then
    call('ZADD', watch, unpack(scores))
  end
  local is_node_here = look(some)
  call('SET', next_look, string.format('%.0f', now + (is_node_here and AFTER_NODE_MS or AFTER_NOTHING_MS)))
  fill_changed()
end

-- When a lane may give a slot without a settlement; nil if nobody knows.
local function next_ms()
  local first = call('ZRANGE', Q .. ':jobmill:lanes:next', 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end

-- Whether a job that waits to be claimed has no slot, because Node has retried or freed it; or its lane is paused. That a job
-- was never claimed says nothing: a retry of Node may reset that, and a child that Node adds frees the job when it ends.
-- A job that was cancelled has no position.
local function is_astray(lane, jmj)
  return not jmj or string.sub(jmj, -1) ~= HAS_SLOT
    or has('paused') and call('SISMEMBER', Q .. ':jobmill:lanes:paused', lane) == 1
end
