-- Where a job stands, and out of there.

-- The state that the port shows and the place that BullMQ has: "running", "active".
local function state_of(id)
  if is_own_key(id) then
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
  for _, place in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
    if call('ZSCORE', Q .. ':' .. place, id) then
      return 'waiting', place
    end
  end
  -- One that has never been claimed does not run. What is no hash (an error here) may stand there all the same.
  if redis.pcall('HEXISTS', job_key(id), 'ats') ~= 0 and call('LPOS', Q .. ':active', id) then
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
