-- Held jobs are in waiting-children, where no worker of Node looks either. `jmh` has what holds them: see codec.py.

-- A member of the dependencies of a job that a person or a lane holds: otherwise the end of its last child would free it.
local function latch()
  return Q .. ':jobmill:hold'
end

local function is_latched(id)
  return call('SISMEMBER', job_key(id) .. ':dependencies', latch()) == 1
end

local function end_hold(id)
  call('HDEL', job_key(id), 'jmh')
  call('SREM', job_key(id) .. ':dependencies', latch())
end

-- Writes what holds a job; prev: the list or set that it comes from, nil where it was held before. `delay` is for Node.
local function hold(id, held, latched, delay, prev)
  local key = job_key(id)
  call('HSET', key, 'jmh', held, 'jmu', now, 'delay', delay)
  call(latched and 'SADD' or 'SREM', key .. ':dependencies', latch())
  if prev then
    call('ZADD', Q .. ':waiting-children', now, id)
    event('waiting-children', 'jobId', id, 'prev', prev)
  end
end
