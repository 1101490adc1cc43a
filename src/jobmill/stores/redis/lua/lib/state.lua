-- The state of a job: the list or sorted set that has its id.

-- The state in the port, and BullMQ's list or set: "running", "active".
local function state_of(id)
  if is_queue_key(id) then
    return nil
  end
  local finished = call('ZSCORE', Q .. ':completed', id)
  if finished then
    return 'succeeded', 'completed'
  end
  finished = call('ZSCORE', Q .. ':failed', id)
  if finished then
    -- The same score: a job that was retried and failed since is not cancelled any more.
    return call('ZSCORE', Q .. ':jobmill:cancelled', id) == finished and 'cancelled' or 'failed', 'failed'
  end
  for _, set in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
    if call('ZSCORE', Q .. ':' .. set, id) then
      return 'waiting', set
    end
  end
  -- A job that was never claimed does not run. A key that is no hash (an error here) may be in the list all the same.
  if redis.pcall('HEXISTS', job_key(id), 'ats') ~= 0 and call('LPOS', Q .. ':active', id) then
    return 'running', 'active'
  end
  if call('EXISTS', job_key(id)) == 0 then
    return nil
  end
  return 'waiting', 'wait'
end
