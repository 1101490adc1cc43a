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
end

-- A job of ours waits for jobs, and is due then.
local function hold_until(id, due, prev)
  hold(id, string.format('{"by":[],"due":{"at_ms":%.0f}}', due), false, math.max(0, due - now), prev)
end
