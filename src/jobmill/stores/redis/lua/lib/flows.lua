-- Flows: what the end of a child does to its parent, which may be in another queue of the same slot.

local function split_key(key)
  return string.match(key, '^(.*):([^:]*)$')
end

-- A parent that waited for its children may run.
local function release_parent(P, pid)
  if call('ZREM', P .. ':waiting-children', pid) == 0 then
    return
  end
  local h = call('HMGET', P .. ':' .. pid, 'delay', 'priority')
  local delay, priority = tonumber(h[1]) or 0, tonumber(h[2]) or 0
  local its_meta = call('HMGET', P .. ':meta', 'paused', 'concurrency')
  if delay > 0 then
    call('ZADD', P .. ':delayed', (now + delay) * 4096, pid)
    call('XADD', P .. ':events', '*', 'event', 'delayed', 'jobId', pid, 'delay', now + delay)
    local first = call('ZRANGE', P .. ':delayed', 0, 0, 'WITHSCORES')
    call('ZADD', P .. ':marker', tonumber(first[2]) / 4096, '1')
    return
  end
  if priority > 0 then
    call('ZADD', P .. ':prioritized', priority * 4294967296 + call('INCR', P .. ':pc') % 4294967296, pid)
  else
    call('RPUSH', ask.v5 and its_meta[1] and P .. ':paused' or P .. ':wait', pid)
  end
  if not its_meta[1] and not (its_meta[2] and call('LLEN', P .. ':active') >= tonumber(its_meta[2])) then
    call('ZADD', P .. ':marker', 0, '0')
  end
  call('XADD', P .. ':events', '*', 'event', 'waiting', 'jobId', pid, 'prev', 'waiting-children')
end

local function release_if_none_pending(parent_key)
  if call('SCARD', parent_key .. ':dependencies') == 0 then
    release_parent(split_key(parent_key))
  end
end

local function child_completed(id, parent_key, value)
  if call('SREM', parent_key .. ':dependencies', job_key(id)) == 1 then
    call('HSET', parent_key .. ':processed', job_key(id), value)
    release_if_none_pending(parent_key)
  end
end

local function child_failed(id, parent_key, parent_json, reason)
  local P, pid = split_key(parent_key)
  local parent = decoded(parent_json)
  local child = job_key(id)
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return  -- it stays a dependency: the parent waits until somebody retries the child
  end
  if call('SREM', parent_key .. ':dependencies', child) == 0 then
    return
  end
  if parent.fpof then
    call('ZADD', parent_key .. ':unsuccessful', now, child)
    local why = 'child ' .. child .. ' failed'
    if call('ZSCORE', P .. ':waiting-children', pid) then
      call('HSET', parent_key, 'defa', why)
      release_parent(P, pid)
    elseif call('ZREM', P .. ':delayed', pid) == 1 then
      call('HSET', parent_key, 'defa', why, 'delay', 0)
      call('RPUSH', P .. ':wait', pid)
      call('ZADD', P .. ':marker', 0, '0')
      call('XADD', P .. ':events', '*', 'event', 'waiting', 'jobId', pid, 'prev', 'delayed')
    elseif call('EXISTS', parent_key) == 1 and not call('ZSCORE', P .. ':failed', pid) then
      call('HSET', parent_key, 'defa', why)
    end
  elseif parent.cpof then
    call('HSET', parent_key .. ':failed', child, reason)
    release_parent(P, pid)
  else
    if parent.idof then
      call('HSET', parent_key .. ':failed', child, reason)
    end
    release_if_none_pending(parent_key)
  end
end

local function forget_end_of_child(id, parent_key)
  call('HDEL', parent_key .. ':processed', job_key(id))
  call('HDEL', parent_key .. ':failed', job_key(id))
  call('ZREM', parent_key .. ':unsuccessful', job_key(id))
end

-- A finished child runs again: its parent waits for it once more.
local function child_back(id, parent_key)
  if call('EXISTS', parent_key) == 1 then
    call('SADD', parent_key .. ':dependencies', job_key(id))
    forget_end_of_child(id, parent_key)
  end
end

-- A child is removed: its parent does not wait for it any more.
local function child_gone(id, parent_key)
  local was_pending = call('SREM', parent_key .. ':dependencies', job_key(id)) == 1
  forget_end_of_child(id, parent_key)
  if was_pending then
    release_if_none_pending(parent_key)
  end
end
