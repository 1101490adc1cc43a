-- Ids and keys that are not a job's.

-- The keys of the queue itself: an id of this name is not a job, and its key must not be touched.
local function is_queue_key(id)
  return ({id = 1, meta = 1, wait = 1, paused = 1, active = 1, prioritized = 1, pc = 1, delayed = 1,
    ['waiting-children'] = 1, completed = 1, failed = 1, events = 1, marker = 1, stalled = 1, ['stalled-check'] = 1,
    limiter = 1, ['repeat'] = 1})[id] ~= nil
end

-- Moves what is at a job's key instead of a hash to another key, so that the job can be failed. False for keys of the queue.
local function set_aside(id)
  if is_queue_key(id) then
    return false
  end
  local kind = call('TYPE', job_key(id)).ok
  if kind ~= 'hash' and kind ~= 'none' then
    call('RENAME', job_key(id), Q .. ':jobmill:aside:' .. id)
    call('HSET', job_key(id), 'jmaside', kind)
  end
  return true
end
