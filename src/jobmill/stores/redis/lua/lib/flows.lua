-- Flows: what the end of a child does to its parent, which may be in another queue of the same slot.

-- Calls a function with the id of a job that may be in another queue; meanwhile Q and its settings are those of that queue.
local function elsewhere(key, act)
  local here = {Q, paused, concurrency, waiting_grew, delayed_changed}
  local fine, answer = pcall(function()
    local id
    Q, id = string.match(key, '^(.*):([^:]*)$')
    local settings = call('HMGET', Q .. ':meta', 'paused', 'concurrency')
    paused, concurrency = settings[1] ~= false, tonumber(settings[2])
    waiting_grew, delayed_changed = false, false
    local answer = act(id)
    set_markers()
    return answer
  end)
  Q, paused, concurrency, waiting_grew, delayed_changed = unpack(here, 1, 5)
  if not fine then
    error(answer, 0)
  end
  return answer
end

--- include held

-- A parent that waited for its children may run. Its due time may have been changed meanwhile.
local function release(id)
  if call('ZREM', Q .. ':waiting-children', id) == 1 then
    local h = call('HMGET', job_key(id), 'delay', 'priority', 'jmh')
    local due = h[3] and decoded(h[3]).due or {after_ms = tonumber(h[1])}
    local due_ms = tonumber(due.at_ms) or now + (tonumber(due.after_ms) or 0)
    end_hold(id)
    wait_until(id, due_ms, tonumber(h[2]) or 0, true, 'waiting-children')
  end
end

local function release_if_none_pending(parent_key)
  if call('SCARD', parent_key .. ':dependencies') == 0 then
    elsewhere(parent_key, release)
  end
end

local function child_completed(id, parent_key, value)
  if call('SREM', parent_key .. ':dependencies', job_key(id)) == 1 then
    call('HSET', parent_key .. ':processed', job_key(id), value)
    release_if_none_pending(parent_key)
  end
end

-- The parent runs as soon as it can, and fails then.
local function fail_parent(parent_key, why)
  elsewhere(parent_key, function(id)
    if call('ZSCORE', Q .. ':waiting-children', id) then
      call('HSET', parent_key, 'defa', why)
      release(id)
    elseif call('ZREM', Q .. ':delayed', id) == 1 then
      call('HSET', parent_key, 'defa', why, 'delay', 0)
      wait_until(id, now, 0, true, 'delayed')
    elseif call('EXISTS', parent_key) == 1 and not call('ZSCORE', Q .. ':failed', id) then
      call('HSET', parent_key, 'defa', why)
    end
  end)
end

local function child_failed(id, parent_key, parent_json, reason)
  local parent, child = decoded(parent_json), job_key(id)
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return  -- it stays a dependency: the parent waits until somebody retries the child
  end
  if call('SREM', parent_key .. ':dependencies', child) == 0 then
    return
  end
  if parent.fpof then
    call('ZADD', parent_key .. ':unsuccessful', now, child)
    fail_parent(parent_key, 'child ' .. child .. ' failed')
  elseif parent.cpof then
    call('HSET', parent_key .. ':failed', child, reason)
    elsewhere(parent_key, function(parent)
      if not is_latched(parent) then
        release(parent)
      end
    end)
  else
    if parent.idof then
      call('HSET', parent_key .. ':failed', child, reason)
    end
    release_if_none_pending(parent_key)
  end
end

-- A child is removed: its parent does not wait for it any more. What the child returned stays with the parent.
local function child_gone(id, parent_key)
  if call('SREM', parent_key .. ':dependencies', job_key(id)) == 1 then
    release_if_none_pending(parent_key)
  end
end
