-- Enqueues jobs that say what happens if their unique key is taken. It needs: enqueue, retention, and what these need.
-- special.taken: what the core decides for each kind of live job that may have the key: "duplicate", "cancel", "pass", or
-- {due, held}: that job takes over the payload, and the due time where there is one (held: its due time after a hold).
-- BullMQ's key of such a job may have a time (special.dedup.ttl). Then it outlives its job, or ends before it. For the second
-- case `jobmill:timed` has the job: it has the key as long as it is live. Entries of other jobs mean nothing; purge removes them.

-- The ids in the port of the jobs that were cancelled.
local cancelled = {}

-- Most calls do not need these functions, and making them takes time.
local function policies()
--- include changes
--- include why_held

local function kind_of(id, set)
  local h = call('HMGET', job_key(id), 'rjk', 'jmv', 'processedOn')
  if h[1] then
    return 'recurring'
  elseif set == 'active' then
    return 'running'
  elseif h[2] or (set == 'waiting-children' and h[3] and why_held(id) == 'held jobs') then
    return 'suspended'
  end
  return set == 'waiting-children' and 'held' or 'waiting'
end

-- As change.lua does it, where the core decides with the options of the job.
local function cancel_owner(id, set)
  local h = read(id)
  local attempt = (tonumber(h.jme or h.atm) or 0) + 1
  local keep = h.jm and (decoded(h.jmo).o or {}).keep_failed
  local p = {events = {{'cancelled', attempt, '{}'}}, keep = h.jm and {default = true}}
  if keep then
    p.keep = {last = keep.last, age = keep.age_ms}
    p.removes = keep.last == 0 or keep.age_ms == 0
    p.events[2] = p.removes and {'removed', attempt, '{}'} or nil
  end
  if set == 'waiting-children' then
    local due = h.jmh and (decoded(h.jmh).due or {}) or {after_ms = tonumber(call('HGET', job_key(id), 'delay'))}
    p.due = tonumber(due.at_ms) or now + (tonumber(due.after_ms) or 0)  -- at_ms may be null
  end
  cancelled[#cancelled + 1] = port_id(job_key(id))
  cancel(id, h, set, p)
end

local function replace(id, set, data, taken)
  call('HSET', job_key(id), 'data', data, 'jmu', now)
  local h = read(id)
  local lane = lane_of(id)
  if lane and taken.held and lanes.stands(id) then
    lanes.join(id, lane, taken.held.at_ms or now + taken.held.after_ms)
  elseif taken.due then
    reschedule(id, h, set, taken.due)
  elseif taken.held then
    local held, due = decoded(h.jmh), taken.held
    held.by, held.due = held.by or {}, due
    -- An empty list is an object in cjson.
    local text = string.gsub(cjson.encode(held), '"by":{}', '"by":[]')
    hold(id, text, is_latched(id), math.max(0, (due.at_ms or now + due.after_ms) - now))
  end
end

return function(id, special, job)
  local deid, mode = special.deid, special.dedup
  local owner_key, timed = Q .. ':de:' .. deid, Q .. ':jobmill:timed'
  local holder = call('GET', owner_key)
  local owner = live_run(special.sid) or live_owner(deid)
  if owner then
    set_aside(owner)
    local _, set = state_of(owner)
    local taken = special.taken[kind_of(owner, set)]
    local is_replaced = type(taken) == 'table'
    if is_replaced then
      replace(owner, set, job[3], taken)
      if mode.extend and (holder ~= owner or call('PTTL', owner_key) ~= -1) then
        call('SET', owner_key, owner, 'PX', mode.ttl)
        call('HSET', timed, deid, owner)
      end
    end
    if is_replaced or taken == 'duplicate' then
      -- As in BullMQ, there is no event where the owner would have been replaced but runs.
      if is_replaced or not mode.replace then
        event('deduplicated', 'jobId', owner, 'deduplicationId', deid, 'deduplicatedJobId', id)
      end
      return is_replaced and 'updated' or 'duplicate', owner
    end
    call('DEL', Q .. ':dn:' .. deid)  -- as BullMQ's replace: the new job takes the place of one that was kept back
    if taken == 'cancel' then
      cancel_owner(owner, set)
    else
      call('HDEL', job_key(owner), 'deid')
    end
  elseif holder and mode.ttl and not mode.replace and call('PTTL', owner_key) ~= -1 then
    event('deduplicated', 'jobId', holder, 'deduplicationId', deid, 'deduplicatedJobId', id)
    return 'duplicate', holder
  end
  if mode.ttl then
    call('SET', owner_key, id, 'PX', mode.ttl)
    call('HSET', timed, deid, id)
  else
    hold_key(id, deid)
  end
  return nil
end
end

local policy
function by_policy(id, special, job)
  policy = policy or policies()
  return policy(id, special, job)
end
