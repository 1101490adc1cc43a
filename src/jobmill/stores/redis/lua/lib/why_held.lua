-- Why a job is in waiting-children: a person or a lane holds it (jmh), and its children do where they are not finished.
local function why_held(id)
  local key = job_key(id) .. ':dependencies'
  local pending = call('SCARD', key) - call('SISMEMBER', key, Q .. ':jobmill:hold')
  if pending == 0 then
    return 'held'
  end
  -- A job that must fail does not wait for others; nor does one that stands in the order of its lane.
  local h = redis.pcall('HMGET', job_key(id), 'defa', 'jmz', 'jmh')
  return (h[1] or h[2] and not h[3]) and 'held' or 'held jobs'
end
