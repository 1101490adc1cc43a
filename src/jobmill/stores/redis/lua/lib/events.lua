-- What every verb that writes stands on: keys, events and markers.

local function job_key(id)
  return Q .. ':' .. id
end

-- BullMQ's stream: one entry for each step of each job, whatever is batched.
local function event(name, ...)
  call('XADD', Q .. ':events', '*', 'event', name, ...)
end

-- The stream is cut by whole nodes of 100 entries; asking for its length first is ten times cheaper than trying.
local function trim_events()
  if call('XLEN', Q .. ':events') >= max_events + 100 then
    call('XTRIM', Q .. ':events', 'MAXLEN', '~', max_events)
  end
end

-- Our own feed, where it is on. To be told before the job's hash goes: ids of ours are shown without their queue.
local function tell(type, id, name, attempt, data)
  if feed_on then
    call('XADD', Q .. ':jobmill:feed', 'MAXLEN', max_events, '*', 'type', type, 'job', id,
      'ours', call('HEXISTS', job_key(id), 'jm'), 'name', name or '', 'at', now, 'attempt', attempt, 'data', data or '{}')
  end
end

-- Whether the global concurrency is reached.
local function is_full()
  return concurrency and call('LLEN', Q .. ':active') >= concurrency
end

-- Markers are set once a call, at its end, for all that came into a line.
local line_grew, delayed_changed = false, false

local function set_markers()
  if delayed_changed then
    local first = call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
    if first[1] then
      call('ZADD', Q .. ':marker', tonumber(first[2]) / 4096, '1')
    end
  end
  -- One sleeping worker wakes; its claim wakes the next.
  if line_grew and not paused and not is_full() then
    call('ZADD', Q .. ':marker', 0, '0')
  end
end

-- JSON that somebody else wrote: a table, or an empty one.
local function decoded(text)
  local fine, value = pcall(cjson.decode, text or '{}')
  if fine and type(value) == 'table' then
    return value
  end
  return {}
end
