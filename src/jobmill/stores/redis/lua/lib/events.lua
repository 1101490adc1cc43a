-- For every verb that writes: keys, events and markers.

local function job_key(id)
  return Q .. ':' .. id
end

-- BullMQ's stream: one entry for each step of each job, also where steps are batched.
local function event(name, ...)
  call('XADD', Q .. ':events', '*', 'event', name, ...)
end

-- The stream is trimmed by whole nodes of 100 entries; reading its length first is ten times cheaper than trying.
local function trim_events()
  if call('XLEN', Q .. ':events') >= max_events + 100 then
    call('XTRIM', Q .. ':events', 'MAXLEN', '~', max_events)
  end
end

-- Our own feed, where it is on. Call this before the job's hash is deleted: ids of ours are shown without their queue.
local function feed_event(type, id, name, attempt, data)
  if feed_on then
    call('XADD', Q .. ':jobmill:feed', 'MAXLEN', max_events, '*', 'type', type, 'job', id,
      'ours', call('HEXISTS', job_key(id), 'jm'), 'name', name or '', 'at', now, 'attempt', attempt, 'data', data or '{}')
  end
end

-- Markers are set once in a call, at its end, for all jobs that now wait.
local waiting_grew, delayed_changed = false, false

local function set_markers()
  if delayed_changed then
    local first = call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
    if first[1] then
      call('ZADD', Q .. ':marker', tonumber(first[2]) / 4096, '1')
    end
  end
  if lanes_rule and lanes then
    -- After that marker: a lane may have a job that is due earlier.
    lanes.fill_changed()
  end
  -- The marker wakes one worker; the claim of that worker wakes the next.
  if waiting_grew and not paused and not (concurrency and call('LLEN', Q .. ':active') >= concurrency) then
    call('ZADD', Q .. ':marker', 0, '0')
  end
end

-- JSON that another program may have written: a table, empty where it is something else.
local function decoded(text)
  local fine, value = pcall(cjson.decode, text or '{}')
  if fine and type(value) == 'table' then
    return value
  end
  return {}
end
