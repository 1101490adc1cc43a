-- Held jobs are in waiting-children, where no worker of Node looks either. `jmh` has what holds them: see codec.py.

-- A member of the dependencies of a job that a person or a lane holds: otherwise the end of its last child would free it.
local function latch()
  return Q .. ':jobmill:hold'
end

-- The same, of a job whose flow is not enqueued completely.
local function stage()
  return Q .. ':jobmill:staged'
end

local function is_latched(id)
  return call('SISMEMBER', job_key(id) .. ':dependencies', latch()) == 1
end

-- Whether its lane holds a job, and no person.
local function is_held_by_lane_alone(id)
  local h = lanes_rule and call('HMGET', job_key(id), 'jmz', 'jmh') or {}
  return h[1] and (not h[2] or string.find(h[2], '"by":["lane"]', 1, true) ~= nil)
end

-- Whether a job stays held when it does not wait for jobs any more. Its lane does not count: release() moves it there.
local function stays_held(id)
  return is_latched(id) and not is_held_by_lane_alone(id)
end

local function is_staged(id)
  return call('SISMEMBER', job_key(id) .. ':dependencies', stage()) == 1
end

local function end_hold(id)
  call('HDEL', job_key(id), 'jmh')
  call('SREM', job_key(id) .. ':dependencies', latch())
end

local function hold_children(id, prev)
  call('ZADD', Q .. ':waiting-children', now, id)
  event('waiting-children', 'jobId', id, unpack(prev and {'prev', prev} or {}))
end

-- Writes what holds a job; prev: the list or set that it comes from, nil where it was held before. `delay` is for Node.
local function hold(id, held, latched, delay, prev)
  local key = job_key(id)
  call('HSET', key, 'jmh', held, 'jmu', now, 'delay', delay)
  call(latched and 'SADD' or 'SREM', key .. ':dependencies', latch())
  if prev then
    hold_children(id, prev)
  end
  local lane = lanes_rule and call('HGET', key, 'jmz')
  if lane then
    lanes.hold(id, lane)
  end
end

-- A job of ours waits for jobs, and is due then.
local function hold_until(id, due, prev)
  local has_lane = lanes_rule and call('HEXISTS', job_key(id), 'jmz') == 1
  local held = string.format('{"by":%s,"due":{"at_ms":%.0f}}', has_lane and '["lane"]' or '[]', due)
  hold(id, held, has_lane, math.max(0, due - now), prev)
end
