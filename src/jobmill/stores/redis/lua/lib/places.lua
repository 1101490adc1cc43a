-- Where a job stands while it waits: wait, prioritized or delayed.
local TWO_32 = 4294967296

-- Version 5 of BullMQ keeps the waiting jobs of a paused queue in a list of their own.
local function wait_key()
  return ask.v5 and paused and Q .. ':paused' or Q .. ':wait'
end

local function to_prioritized(id, priority)
  call('ZADD', Q .. ':prioritized', priority * TWO_32 + call('INCR', Q .. ':pc') % TWO_32, id)
end

-- To the back of its line; lifo: to the front.
local function to_line(id, priority, lifo)
  if priority > 0 then
    to_prioritized(id, priority)
  else
    call(lifo and 'RPUSH' or 'LPUSH', wait_key(), id)
  end
  line_grew = true
end

-- 4096 places in each millisecond keep jobs of one instant in the order that they came in.
local function to_delayed(id, due)
  local base = due * 4096
  local last = call('ZREVRANGEBYSCORE', Q .. ':delayed', base + 4095, base, 'WITHSCORES', 'LIMIT', 0, 1)
  local score = last[2] and math.min(tonumber(last[2]) + 1, base + 4095) or base
  call('ZADD', Q .. ':delayed', score, id)
  delayed_changed = true
end

-- Delayed jobs that are due go to the back of their lines, by due time.
local function promote()
  local due = call('ZRANGEBYSCORE', Q .. ':delayed', 0, (now + 1) * 4096 - 1, 'LIMIT', 0, 1000)
  if #due == 0 then
    return
  end
  call('ZREM', Q .. ':delayed', unpack(due))
  for _, id in ipairs(due) do
    local priority = tonumber(call('HGET', job_key(id), 'priority')) or 0
    if priority > 0 then
      to_prioritized(id, priority)
    else
      call('LPUSH', wait_key(), id)
    end
    event('waiting', 'jobId', id, 'prev', 'delayed')
    call('HSET', job_key(id), 'delay', 0)
  end
  line_grew = true
end

-- The state that the port shows and the place that BullMQ has: "running", "active".
local function state_of(id)
  local finished = call('ZSCORE', Q .. ':completed', id)
  if finished then
    return 'succeeded', 'completed'
  end
  finished = call('ZSCORE', Q .. ':failed', id)
  if finished then
    -- The same score: a job that was retried and failed since is not cancelled any more.
    return call('ZSCORE', Q .. ':jobmill:cancelled', id) == finished and 'cancelled' or 'failed', 'failed'
  end
  for _, place in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
    if call('ZSCORE', Q .. ':' .. place, id) then
      return 'waiting', place
    end
  end
  if call('HEXISTS', job_key(id), 'ats') == 1 and call('LPOS', Q .. ':active', id) then
    return 'running', 'active'
  end
  if call('EXISTS', job_key(id)) == 0 then
    return nil
  end
  return 'waiting', 'wait'
end

-- Out of wherever it stands.
local function take_out(id, place)
  if place == 'wait' then
    if call('LREM', Q .. ':wait', -1, id) == 0 then
      call('LREM', Q .. ':paused', -1, id)
    end
  elseif place == 'active' then
    call('LREM', Q .. ':active', -1, id)
  else
    call('ZREM', Q .. ':' .. place, id)
  end
end
