-- How long finished jobs stay. A job of ours goes by its own rule; a job of Node's by BullMQ's, which rules over all.

-- 7 and 30 days, in ms; see core/job.py.
local DEFAULT_AGES = {completed = 604800000, failed = 2592000000}

-- A finished job leaves; nobody is told (BullMQ tells nobody either).
local function forget(id, set)
  local said = redis.pcall('HMGET', job_key(id), 'parentKey', 'deid')
  call('ZREM', Q .. ':' .. set, id)
  call('ZREM', Q .. ':jobmill:cancelled', id)
  call('ZREM', Q .. ':jobmill:expiry', id)
  call('ZREM', Q .. ':jobmill:last', id)
  if said[1] then
    pcall(child_gone, id, said[1])  -- whatever its parent's keys are: this job goes
  end
  if said[2] then
    pcall(free_deduplication, id, said[2])
  end
  delete_keys(id)
end

-- Which of the jobs of its own final state this one is, counted from the newest, from 0.
local function place_of(id)
  local place = call('ZREVRANK', Q .. ':completed', id)
  if place then
    return place, 'completed'
  end
  local score = call('ZSCORE', Q .. ':failed', id)
  if not score then
    return nil
  end
  if call('ZSCORE', Q .. ':jobmill:cancelled', id) == score then
    return call('ZREVRANK', Q .. ':jobmill:cancelled', id), 'failed'
  end
  return call('ZREVRANK', Q .. ':failed', id) - call('ZCOUNT', Q .. ':jobmill:cancelled', '(' .. score, '+inf'), 'failed'
end

-- By the job's own rule: {last, age}, either of which may be missing. Where it is the default, nothing is noted: purge
-- finds such jobs by their age alone, also those that Node has settled.
local function keep_own(id, keep, set)
  -- What was noted at an earlier end holds no more.
  call('ZREM', Q .. ':jobmill:last', id)
  call('ZREM', Q .. ':jobmill:expiry', id)
  if keep.last then
    call('ZADD', Q .. ':jobmill:last', keep.last, id)
  end
  if keep.age ~= DEFAULT_AGES[set] then
    call('ZADD', Q .. ':jobmill:expiry', keep.age and now + keep.age or '+inf', id)
  end
end

-- As BullMQ keeps: {count, age in s, limit}, for all that the set holds.
local function keep_as_node(set, keep)
  if keep.age then
    local old = call('ZRANGEBYSCORE', Q .. ':' .. set, '-inf', now - keep.age * 1000, 'LIMIT', 0, keep.limit or 1000)
    for _, id in ipairs(old) do
      forget(id, set)
    end
  end
  if keep.count and keep.count > 0 then
    for _, id in ipairs(call('ZREVRANGE', Q .. ':' .. set, keep.count, -1)) do
      forget(id, set)
    end
  end
end
