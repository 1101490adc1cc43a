-- fsck: looks at records of one queue for one kind of damage, and repairs it where it is asked to, in the same step.
-- ask: check, ids, source: the list or set that the ids come from, repair, reads (nothing is to be changed), marker_ms,
-- staged_ms, listed, texts: see flows.lua.
-- Returns: the ids that are damaged.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include flows
--- include edges
--- include staged

-- Where a job stays that is in several places, the first of them that has it; but a job that runs under a lock runs.
local PLACES = {'completed', 'failed', 'waiting-children', 'delayed', 'prioritized', 'wait', 'paused', 'active'}
local LISTS = {wait = true, paused = true, active = true}

-- How often an id is in a list or sorted set.
local function times_in(place, id)
  if LISTS[place] then
    return #call('LPOS', Q .. ':' .. place, id, 'COUNT', 0)
  end
  return call('ZSCORE', Q .. ':' .. place, id) and 1 or 0
end

local function remove_from(place, id, times)
  if LISTS[place] then
    call('LREM', Q .. ':' .. place, times, id)
  else
    call('ZREM', Q .. ':' .. place, id)
  end
end

local checks = {}

function checks.id_in_two_places(id)
  local total, keep, found = 0, nil, {}
  for _, place in ipairs(PLACES) do
    local times = times_in(place, id)
    total = total + times
    if times > 0 then
      found[place] = times
      if not keep or (place == 'active' and call('EXISTS', job_key(id) .. ':lock') == 1) then
        keep = place
      end
    end
  end
  if total < 2 then
    return false
  end
  for place, times in pairs(ask.repair and found or {}) do
    local too_often = place == keep and times - 1 or times
    if too_often > 0 then
      remove_from(place, id, too_often)
    end
  end
  return true
end

function checks.id_without_hash(id)
  -- BullMQ before version 5 puts markers such as "0:0" among the jobs.
  if is_queue_key(id) or string.sub(id, 1, 2) == '0:' or call('EXISTS', job_key(id)) == 1
    or times_in(ask.source, id) == 0 then
    return false
  end
  if ask.repair then
    remove_from(ask.source, id, 0)
    call('DEL', job_key(id) .. ':lock')
    call('SREM', Q .. ':stalled', id)
  end
  return true
end

function checks.logs_without_job(id)
  local logs = job_key(id) .. ':logs'
  if is_queue_key(id) or call('EXISTS', job_key(id)) == 1 or call('EXISTS', logs) == 0 then
    return false
  end
  if ask.repair then
    call('DEL', logs)
  end
  return true
end

-- The policy of an edge, from the side of the dependency; and whether its relay still has to tell it.
local function edge_policy(child, parent_key)
  local h = call('HMGET', child, 'parentKey', 'parent')
  if not h[1] or not is_relay(h[1]) then
    return policy_of(h[2]), false
  end
  local queue, id = string.match(h[1], '^(.*):([^:]*)$')
  local score = tonumber(call('ZSCORE', h[1] .. ':next', parent_key))
  return score and BY_STRENGTH[score % 8] or 'fpof', call('LPOS', queue .. ':wait', id) and true or false
end

-- Whether a dependency is gone, or has ended: then nobody may wait for it. One that failed may be retried where nobody has
-- said what becomes of the others.
local function is_over(child, parent_key)
  local state = look_at(child)
  if state == 'waiting' or state == 'running' then
    return false
  end
  local policy, is_told_later = edge_policy(child, parent_key)
  return not is_told_later and (not state or state == 'succeeded' or policy ~= 'none')
end

local function repair_edge(child, parent_key)
  local state, h = look_at(child)
  local ended = {value = state == 'succeeded' and (h[1] or 'null') or nil}
  if state == 'failed' or state == 'cancelled' then
    ended = failure_of(state, h)
  end
  tell(child, parent_key, (edge_policy(child, parent_key)), ended)
end

function checks.dependencies_gone(id)
  local key, any = job_key(id), false
  if not call('ZSCORE', Q .. ':waiting-children', id) or is_staged(id) then
    return false
  end
  for _, child in ipairs(call('SMEMBERS', key .. ':dependencies')) do
    local fine, over = true, false
    if child ~= latch() then
      fine, over = pcall(is_over, child, key)  -- on a cluster, it may be on another node
    end
    if fine and over then
      any = true
      if ask.repair then
        repair_edge(child, key)
      end
    end
  end
  return any
end

-- ask.listed: the staged jobs of flows that are being enqueued.
function checks.staged_alone(id)
  local key = job_key(id)
  local added = tonumber(redis.pcall('HGET', key, 'timestamp')) or 0
  if ask.listed[key] or not is_staged(id) or added > now - ask.staged_ms then
    return false
  end
  if ask.repair then
    each_dependency(call('HGET', key, 'jmg') or '[]', function(child, policy)
      link(child, key, policy)
      set_edge(child, key, policy)
    end)
    free_staged(id)
  end
  return true
end

-- Q is a queue of relays here.
function checks.relay_astray(id)
  local relay = job_key(id)
  local child = call('HGET', relay, 'child')
  if not child or call('LPOS', Q .. ':wait', id) then
    return false
  end
  local state, h = look_at(child)
  local is_live = state == 'waiting' or state == 'running'
  local is_armed = call('ZSCORE', Q .. ':waiting-children', id) and true or false
  if state and is_live == is_armed and call('HGET', child, 'parentKey') == relay then
    return false
  end
  if not ask.repair then
    return true
  elseif is_live then
    call('HSET', child, 'parentKey', relay, 'parent', parent_json(relay, 'idof'))
    arm_relay(relay, child)
  elseif state then
    local ended = state == 'succeeded' and {value = h[1] or 'null'} or failure_of(state, h)
    call('HSET', child, 'parentKey', relay, 'parent', parent_json(relay, 'idof'))
    begin_relay(relay, child, ended)
  else
    begin_relay(relay, child, {})
    end_relay(relay)
  end
  return true
end

-- ask.source: a flow.
function checks.flow_index(id)
  local set = Q .. ':jobmill:flow:' .. ask.source
  if call('EXISTS', job_key(id)) == 1 or call('SISMEMBER', set, id) == 0 then
    return false
  end
  if ask.repair then
    leave_flow(id, ask.source)
  end
  return true
end

function checks.waiting_children_unheld(id)
  if not call('ZSCORE', Q .. ':waiting-children', id) or call('EXISTS', job_key(id)) == 0
    or call('EXISTS', job_key(id) .. ':dependencies') == 1 or (call('HEXISTS', job_key(id), 'jmg') == 0
    and call('HEXISTS', job_key(id), 'jmh') == 1) or lane_of(id) then
    return false
  end
  if ask.repair then
    release(id)
  end
  return true
end

-- The ids are members of lanes:slots and lanes:begun. What Node has ended a moment ago is found by the next look.
function checks.lane_slot(slot)
  local lane, member = lanes.read_slot(slot)
  local id = lanes.id_of(member)
  local h = redis.pcall('HMGET', job_key(id), 'jmz', 'jmj', 'finishedOn')
  local is_final = not h.err and (tonumber(h[3] or nil) or now) <= now - ask.marker_ms
    and (call('ZSCORE', Q .. ':completed', id) or call('ZSCORE', Q .. ':failed', id))
  local is_there = call('ZSCORE', lanes.slots_key(), slot) or call('ZSCORE', lanes.begun_key(), slot)
  local is_current = h[1] == lane and h[2] and lanes.position_in(h[2]) .. id == member
  if h.err or not is_there or not is_final and is_current then
    return false
  end
  if ask.repair then
    lanes.lose_slot(slot)
    if is_current then
      call('HSET', job_key(id), 'jmj', lanes.position_in(h[2]) .. '-')
    end
    lanes.note(lane, true)
  end
  return true, id
end

-- The same with the members of lane:<lane>.
function checks.lane_order(member)
  local key, id = lanes.held_key(ask.source), lanes.id_of(member)
  local h = redis.pcall('HMGET', job_key(id), 'jmz', 'jmj', 'jmh')
  local is_held = not h.err and h[1] == ask.source and h[2] and lanes.position_in(h[2]) .. id == member and not h[3]
    and call('ZSCORE', Q .. ':waiting-children', id)
  if is_held or not call('ZSCORE', key, member) then
    return false
  end
  if ask.repair then
    call('ZREM', key, member)
    lanes.note(ask.source, true)
  end
  return true, id
end

function checks.lane_lost(id)
  local lane = lane_of(id)
  if not lane or not call('ZSCORE', Q .. ':waiting-children', id) or lanes.stands(id) or is_staged(id)
    or not is_held_by_lane_alone(id) or call('ZSCORE', Q .. ':jobmill:lanes:blocked', id) then
    return false
  end
  if ask.repair then
    local h = call('HMGET', job_key(id), 'jmh', 'jmj')
    if h[1] then
      lanes.hold(id, lane)
    else
      lanes.join(id, lane, tonumber(string.sub(h[2] or '', 8, 22)) or now)
    end
  end
  return true
end

function checks.lane_index(lane)
  if call('EXISTS', lanes.held_key(lane)) + lanes.count_slots(lane) == 0 or call('ZSCORE', Q .. ':jobmill:lanes', lane) then
    return false
  end
  if ask.repair then
    lanes.note(lane, true)
  end
  return true
end

function checks.marker_missing()
  local first = call('LINDEX', Q .. ':wait', -1) or call('ZRANGE', Q .. ':prioritized', 0, 0)[1]
  if not first or paused or concurrency == 0 or call('EXISTS', Q .. ':marker', Q .. ':limiter', Q .. ':active') > 0 then
    return false
  end
  local h = redis.pcall('HMGET', job_key(first), 'timestamp', 'jmu')
  if math.max(tonumber(h[1]) or now, tonumber(h[2]) or 0) > now - ask.marker_ms then
    return false
  end
  waiting_grew = ask.repair
  return true
end

local damaged = {}
for _, id in ipairs(ask.ids) do
  local is_damaged, job = checks[ask.check](id)
  if is_damaged then
    damaged[#damaged + 1] = job or id
  end
end
if ask.repair then
  set_markers()
end
return damaged
