-- The list and sets that a job waits in: wait, prioritized and delayed.
local TWO_32 = 4294967296
if lanes_rule and not lanes then
--- include lane_module
end

-- Version 5 of BullMQ keeps the waiting jobs of a paused queue in a list of their own.
local function wait_key()
  return ask.v5 and paused and Q .. ':paused' or Q .. ':wait'
end

-- To the end of wait or of its priority; lifo: to the front of wait.
local function to_waiting(id, priority, lifo)
  if priority > 0 then
    local counter = redis.pcall('INCR', Q .. ':pc')
    if type(counter) ~= 'number' then
      call('SET', Q .. ':pc', 1)  -- it was no number
      counter = 1
    end
    call('ZADD', Q .. ':prioritized', priority * TWO_32 + counter % TWO_32, id)
  else
    call(lifo and 'RPUSH' or 'LPUSH', wait_key(), id)
  end
  waiting_grew = true
end

-- 4096 scores in each millisecond keep jobs of one instant in the order in which they were added.
local function to_delayed(id, due)
  local base = due * 4096
  local last = call('ZREVRANGEBYSCORE', Q .. ':delayed', base + 4095, base, 'WITHSCORES', 'LIMIT', 0, 1)
  local score = last[2] and math.min(tonumber(last[2]) + 1, base + 4095) or base
  call('ZADD', Q .. ':delayed', score, id)
  delayed_changed = true
end

-- To delayed, or where it waits if it is due, with the event; `prev`: the list or set that it comes from.
local function wait_outside_lane(id, due, priority, lifo, prev)
  if due > now then
    to_delayed(id, due)
    event('delayed', 'jobId', id, 'delay', due)
  else
    to_waiting(id, priority, lifo)
    event('waiting', 'jobId', id, unpack(prev and {'prev', prev} or {}))
  end
end

-- The lane of a job; nil where it has none.
local function lane_of(id)
  return lanes_rule and call('HGET', job_key(id), 'jmz') or nil
end

-- The same; but a job with a lane joins its lane.
local function wait_until(id, due, priority, lifo, prev)
  local lane = lanes_rule and lane_of(id)
  if lane then
    lanes.join(id, lane, due, prev or 'waiting')
    return
  end
  wait_outside_lane(id, due, priority, lifo, prev)
end

-- When the first delayed job is due; nil without one.
local function first_delayed()
  local first = call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
  return first[1] and math.floor(tonumber(first[2]) / 4096) or nil
end

-- Moves delayed jobs that are due to the end of wait or of their priority, by due time. Returns when the next one is due.
local function promote()
  local first = first_delayed()
  if not first or first > now then
    return first
  end
  local due = call('ZRANGEBYSCORE', Q .. ':delayed', '-inf', (now + 1) * 4096 - 1, 'LIMIT', 0, 1000)
  for _, id in ipairs(due) do
    -- A key that is no hash is left to the claim: an error here would stop all jobs after it.
    to_waiting(id, tonumber(redis.pcall('HGET', job_key(id), 'priority')) or 0)
    -- Only after it is elsewhere: a script that stops at an error is not undone.
    call('ZREM', Q .. ':delayed', id)
    event('waiting', 'jobId', id, 'prev', 'delayed')
    redis.pcall('HSET', job_key(id), 'delay', 0)
  end
  return first_delayed()
end

-- Removes a job from its list or set.
local function take_out(id, set)
  if set == 'wait' then
    if call('LREM', Q .. ':wait', -1, id) == 0 then
      call('LREM', Q .. ':paused', -1, id)
    end
  elseif set == 'active' then
    call('LREM', Q .. ':active', -1, id)
  else
    call('ZREM', Q .. ':' .. set, id)
  end
end
