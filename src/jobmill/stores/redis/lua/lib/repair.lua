-- Ids and keys that cannot be a job's.

-- The queue's own keys: what has such an id is not a job, and its key is not to be touched.
local function is_own_key(id)
  return ({id = 1, meta = 1, wait = 1, paused = 1, active = 1, prioritized = 1, pc = 1, delayed = 1,
    ['waiting-children'] = 1, completed = 1, failed = 1, events = 1, marker = 1, stalled = 1, ['stalled-check'] = 1,
    limiter = 1, ['repeat'] = 1})[id] ~= nil
end

-- Whatever is at a job's key instead of a hash is put aside, for somebody to look at, so that the job can be failed.
-- False for the queue's own keys.
local function mend(id)
  if is_own_key(id) then
    return false
  end
  local kind = call('TYPE', job_key(id)).ok
  if kind ~= 'hash' and kind ~= 'none' then
    call('RENAME', job_key(id), Q .. ':jobmill:aside:' .. id)
    call('HSET', job_key(id), 'jmaside', kind)
  end
  return true
end
