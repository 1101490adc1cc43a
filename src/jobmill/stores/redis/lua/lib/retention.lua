-- How long finished jobs stay. Each job of ours has its own retention; BullMQ's retention, for Node's jobs, covers all jobs
-- of the set.

-- Notes of an earlier end do not apply any more.
local function forget_retention(id)
  call('ZREM', Q .. ':jobmill:pinned', id)
  call('ZREM', Q .. ':jobmill:cancelled', id)
  call('ZREM', Q .. ':jobmill:expiry', id)
  call('ZREM', Q .. ':jobmill:last', id)
end

-- Removes a finished job without an event, as BullMQ does.
local function forget(id, set)
  local h = redis.pcall('HMGET', job_key(id), 'parentKey', 'deid', 'jmy')
  call('ZREM', Q .. ':' .. set, id)
  forget_retention(id)
  if h[1] then
    pcall(child_gone, id, h[1])  -- an error in its parent's keys must not keep this job
  end
  if h[2] then
    pcall(free_deduplication, id, h[2])
  end
  delete_keys(id, h[3])
end

-- Whether jobs are there that wait for a job or have waited for it. It stays as long as they do.
local function is_pinned(parent_key)
  if not parent_key or not is_relay(parent_key) then
    return parent_key and call('EXISTS', parent_key) == 1
  end
  local next = parent_key .. ':next'
  for _ = 1, 100 do
    local first = call('ZRANGE', next, 0, 0)[1]
    if not first or call('EXISTS', first) == 1 then
      return first ~= nil
    end
    call('ZREM', next, first)  -- it has been removed
  end
  return true
end

-- A job that is past its retention stays for others: purge looks at it again.
local function keep_pinned(id)
  call('ZREM', Q .. ':jobmill:last', id)
  call('ZADD', Q .. ':jobmill:expiry', '+inf', id)
  call('ZADD', Q .. ':jobmill:pinned', now, id)
end

-- The position of a job among those of its final state, from the newest, from 0; and its set.
local function rank_of(id)
  local rank = call('ZREVRANK', Q .. ':completed', id)
  if rank then
    return rank, 'completed'
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

-- Notes the retention of a job of ours: {last, age}, both optional, or {default}. The default is not noted: purge finds such
-- jobs by their age alone, also those that Node has settled.
local function keep_own(id, keep)
  -- Notes of an earlier end do not apply any more.
  call('ZREM', Q .. ':jobmill:last', id)
  call('ZREM', Q .. ':jobmill:expiry', id)
  if keep.last then
    call('ZADD', Q .. ':jobmill:last', keep.last, id)
  end
  if not keep.default then
    call('ZADD', Q .. ':jobmill:expiry', keep.age and now + keep.age or '+inf', id)
  end
  if keep.age then
    call('HSET', job_key(id), 'jmk', keep.age)
  end
end

-- BullMQ's retention: {count, age in s, limit}, for all jobs of the set.
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
