-- Flows: what the end of a job does to the jobs that wait for it, which may be in other queues of the same slot.
-- As in BullMQ, a job knows one job that waits for it: its parent. Where several wait, the parent is a relay: a job of ours in
-- a queue of its own, which has the others in the sorted set <relay>:next. Those wait for the job itself, not for the relay.
-- Policies are BullMQ's: fpof, cpof, idof, rdof, and "none" for a dependent that waits until the job succeeds.
-- ask.texts: the errors of a job that fails because of a dependency; "%1" is its id, "%2" its error.

-- Calls a function with Q and its settings those of another queue.
local function in_queue(queue, act, ...)
  local here = {Q, paused, concurrency, waiting_grew, delayed_changed, feed_on, max_events, lanes_rule}
  local fine, answer = pcall(function(...)
    Q = queue
    local settings = call('HMGET', Q .. ':meta', 'paused', 'concurrency', 'jmfeed', 'opts.maxLenEvents', 'jmlanes')
    paused, concurrency, feed_on = settings[1] ~= false, tonumber(settings[2]), settings[3] ~= false
    max_events = tonumber(settings[4]) or ask.max_events
    waiting_grew, delayed_changed = false, false
    lanes_rule = settings[5] or (ask.lanes and '')
    if lanes_rule and not lanes then
--- include lane_module
    end
    local answer = act(...)
    set_markers()
    return answer
  end, ...)
  Q, paused, concurrency, waiting_grew, delayed_changed, feed_on, max_events, lanes_rule = unpack(here, 1, 8)
  if not fine then
    error(answer, 0)
  end
  return answer
end

-- Calls a function with the id of a job that may be in another queue; meanwhile Q and its settings are those of that queue.
local function elsewhere(key, act)
  local queue, id = string.match(key, '^(.*):([^:]*)$')
  return in_queue(queue, act, id)
end

--- include held
--- include position

-- A job of ours is free: it gets the position that it would have if nothing had held it.
local function free(id, due, h, prev)
  local key = job_key(id)
  if due ~= tonumber(h.jmd or h.timestamp) then
    h.jmd = due
    call('HSET', key, 'jmd', due)
  end
  local priority = tonumber(h.priority) or 0
  if due > now or h.jmd then
    wait_until(id, due, priority, false, prev)
    return
  end
  if priority > 0 then
    back_to_prioritized(id, priority, tonumber(h.jm))
  else
    back_to_wait(id, tonumber(h.jm))
  end
  waiting_grew = true
  event('waiting', 'jobId', id, 'prev', prev)
end

-- A job that waited for others may run. Its due time may have been changed meanwhile. One with a lane joins its lane.
local function release(id)
  local lane = lane_of(id)
  if lane then
    if lanes.stands(id) or not call('ZSCORE', Q .. ':waiting-children', id) then
      return
    end
  elseif call('ZREM', Q .. ':waiting-children', id) == 0 then
    return
  end
  local h = call('HMGET', job_key(id), 'delay', 'priority', 'jmh', 'jmg', 'jm', 'jmd', 'timestamp', 'name', 'atm', 'jme')
  local due = h[3] and decoded(h[3]).due or {after_ms = tonumber(h[1])}
  local due_ms = tonumber(due.at_ms) or now + (tonumber(due.after_ms) or 0)
  if lane then
    lanes.join(id, lane, due_ms)
    return
  end
  end_hold(id)
  if not h[5] then
    wait_until(id, due_ms, tonumber(h[2]) or 0, true, 'waiting-children')
    return
  end
  if h[4] then
    call('HSET', job_key(id), 'jmu', now, 'delay', math.max(0, due_ms - now))
    feed_event('released', id, h[8], (tonumber(h[10] or h[9]) or 0) + 1)
  end
  free(id, due_ms, {priority = h[2], jm = h[5], jmd = h[6], timestamp = h[7]}, 'waiting-children')
end

local function release_if_none_pending(parent_key)
  local pending = call('SCARD', parent_key .. ':dependencies')
  if pending == 0 then
    elsewhere(parent_key, release)
  elseif pending == 1 then
    elsewhere(parent_key, function(id)
      if lanes_rule and is_latched(id) and is_held_by_lane_alone(id) then
        release(id)
      end
    end)
  end
end

-- The dependent runs as soon as it can, and fails then. One of ours stays held while a person holds it, and changes only
-- while it waits for jobs.
local function fail_parent(parent_key, why, is_ours)
  elsewhere(parent_key, function(id)
    if call('ZSCORE', Q .. ':waiting-children', id) then
      call('HSET', parent_key, 'defa', why)
      if not (is_staged(id) or (is_ours and stays_held(id))) then
        release(id)
      end
    elseif is_ours then
      return
    elseif call('ZREM', Q .. ':delayed', id) == 1 then
      call('HSET', parent_key, 'defa', why, 'delay', 0)
      wait_until(id, now, 0, true, 'delayed')
    elseif call('EXISTS', parent_key) == 1 and not call('ZSCORE', Q .. ':failed', id) then
      call('HSET', parent_key, 'defa', why)
    end
  end)
end

-- The id of a job in the port: see ids.py.
local function port_id(key)
  local queue, id = string.match(key, '([^:]*):([^:]*)$')
  return redis.pcall('HEXISTS', key, 'jm') == 1 and not string.find(id, '^%d+$') and id or queue .. ':' .. id
end

-- The first line of an error, without half a character at its end.
local function first_line(text)
  local line = string.match(text, '^[^\n]*')
  if #line > 500 then
    line = string.gsub(string.sub(line, 1, 500), '[\192-\244][\128-\191]*$', '')
  end
  return line
end

-- How a job ended, for those that wait for it: value; or reason, line (its first line, with its type) and cancelled.
local function failure(reason, typed, cancelled)
  return {reason = reason, line = first_line(typed or reason), cancelled = cancelled}
end

local function tell_failure(child, parent_key, policy, ended)
  local dependencies = parent_key .. ':dependencies'
  if call('SISMEMBER', dependencies, child) == 0 then
    return 0
  end
  local is_ours = call('HEXISTS', parent_key, 'jmg') == 1
  if is_ours then
    call('HSET', parent_key, 'jmb:' .. child, (ended.cancelled and 'cancelled ' or 'failed ') .. policy .. ' ' .. ended.line)
  end
  if policy == 'none' then
    return 0  -- it stays a dependency: the dependent waits until somebody retries the job
  end
  call('SREM', dependencies, child)
  if policy == 'fpof' then
    call('ZADD', parent_key .. ':unsuccessful', now, child)
    local why = 'child ' .. child .. ' failed'
    if is_ours and ask.texts then
      local values = {['%1'] = port_id(child), ['%2'] = ended.line}
      why = string.gsub(ask.texts[ended.cancelled and 2 or 1], '%%[12]', values)
    end
    fail_parent(parent_key, why, is_ours)
  elseif policy == 'cpof' then
    call('HSET', parent_key .. ':failed', child, ended.reason)
    elsewhere(parent_key, function(parent)
      if not stays_held(parent) and not is_staged(parent) then
        release(parent)
      end
    end)
  else
    if policy == 'idof' then
      call('HSET', parent_key .. ':failed', child, ended.reason)
    end
    release_if_none_pending(parent_key)
  end
  return 1
end

-- Sets the edge of one dependent. 1 if it was pending, otherwise 0.
local function tell(child, parent_key, policy, ended)
  if ended.reason then
    return tell_failure(child, parent_key, policy, ended)
  end
  if call('SREM', parent_key .. ':dependencies', child) == 0 then
    return 0
  end
  if ended.value then
    call('HSET', parent_key .. ':processed', child, ended.value)
  end
  release_if_none_pending(parent_key)
  return 1
end

--- include relays

local function policy_of(parent_json)
  local parent = decoded(parent_json)
  return parent.fpof and 'fpof' or parent.cpof and 'cpof' or parent.idof and 'idof' or parent.rdof and 'rdof' or 'none'
end

-- A job has ended. Whether jobs that wait for it are left for flush_outbox.
local function child_ended(id, parent_key, parent_json, ended)
  if is_relay(parent_key) then
    return begin_relay(parent_key, job_key(id), ended)
  end
  tell(job_key(id), parent_key, ended.reason and policy_of(parent_json) or '', ended)
  return false
end

-- A job is removed: others do not wait for it any more. What it returned stays with them.
local function child_gone(id, parent_key)
  child_ended(id, parent_key, nil, {})
  if is_relay(parent_key) then
    end_relay(parent_key)
  end
end
