-- Changes of one job that several scripts make. It needs: events, waiting, repair, state, add, schedulers, flows and retention.
local FIELDS = {'name', 'atm', 'jme', 'deid', 'parentKey', 'parent', 'rjk', 'priority', 'jm', 'jmo', 'opts', 'ats', 'jmd', 'jmh',
  'timestamp', 'data', 'jmr', 'jmg', 'jmy'}

local function read(id)
  local values = call('HMGET', job_key(id), unpack(FIELDS))
  local h = {}
  for i, field in ipairs(FIELDS) do
    h[field] = values[i] or nil
  end
  return h
end

-- `removed`: whether the job is removed. One that others wait for is not.
local function feed_events(id, h, p, removed)
  for _, e in ipairs(p.events) do
    if e[1] == 'removed' and not removed then
      break
    end
    feed_event(e[1], id, h.name, e[2], e[3])
  end
end

-- The live job that has a deduplication id; nil without one. Where BullMQ's key has a time, it may have expired: see policy.lua.
local function live_owner(deid)
  for _, id in ipairs({call('GET', Q .. ':de:' .. deid) or '', call('HGET', Q .. ':jobmill:timed', deid) or ''}) do
    local state = id ~= '' and state_of(id)
    if state == 'waiting' or state == 'running' then
      return id
    end
  end
  return nil
end

-- A live job takes a deduplication id that is free. A time that another job has left on BullMQ's key stays.
local function hold_key(id, deid)
  call('SET', Q .. ':de:' .. deid, id, 'KEEPTTL')
  if call('PTTL', Q .. ':de:' .. deid) ~= -1 then
    call('HSET', Q .. ':jobmill:timed', deid, id)
  end
end

-- A recurring job that is cancelled or removed does not run again.
local function end_recurrence(id, h)
  if h.rjk and id == present_run(h.rjk) then
    end_scheduler(h.rjk)
  end
end

local function cancel(id, h, set, p)
  local key = job_key(id)
  take_out(id, set)
  if lanes_rule then
    lanes.gone(id)
  end
  call('DEL', key .. ':lock')
  call('SREM', Q .. ':stalled', id)
  end_recurrence(id, h)
  if h.deid then
    free_deduplication(id, h.deid)
    drop_deduplication(id, h.deid)  -- BullMQ's key with a time is left for that time only if the job has ended by itself
  end
  if h.parentKey then
    child_ended(id, h.parentKey, h.parent, failure('cancelled', nil, true))
  end
  local removes = p.removes and not is_pinned(h.parentKey)
  event('failed', 'jobId', id, 'failedReason', 'cancelled', 'prev', set == 'wait' and 'waiting' or set)
  feed_events(id, h, p, removes)
  waiting_grew = waiting_grew or set == 'active'
  if removes then
    delete_keys(id, h.jmy)
    return
  end
  call('HSET', key, 'failedReason', 'cancelled', 'finishedOn', now)
  call('HDEL', key, 'defa', 'jmu')
  if p.due then
    call('HSET', key, 'jmd', p.due)  -- it was held
    end_hold(id)
  end
  call('ZADD', Q .. ':failed', now, id)
  call('ZADD', Q .. ':jobmill:cancelled', now, id)
  if p.removes then
    keep_pinned(id)
  else
    keep_own(id, p.keep or {})
  end
end

local function reschedule(id, h, set, due)
  take_out(id, set)
  call('HSET', job_key(id), 'delay', math.max(0, due - now), 'jmd', due, 'jmu', now)
  wait_until(id, due, tonumber(h.priority) or 0, false, set == 'wait' and 'waiting' or set)
  delayed_changed = true
end
