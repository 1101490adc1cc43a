-- Claims jobs. `c` is the claim: n, token, ahead, lease_ms, worker, and names {name: room}. The room of a name is the number of
-- jobs of this name that the claim may still take.
local MAX_SCANNED = 1000
if lanes_rule and not lanes then
--- include lane_module
end
-- How many ids are read at once, at least.
local MIN_READ = 20
local EVENTS, WAIT, ACTIVE = Q .. ':events', Q .. ':wait', Q .. ':active'

-- How many more jobs the rate limit allows in this window, and when the window ends; nil if there is no rate limit.
local function room_in_window()
  local max = tonumber(meta[3])
  if not max then
    return nil
  end
  local used = tonumber(call('GET', Q .. ':limiter')) or 0
  if used == 0 then
    return max
  end
  -- A window of Node lasts as long as its key exists. The end of a window of ours is stored in a separate key.
  local ended = tonumber(call('GET', Q .. ':jobmill:window'))
  local left = call('PTTL', Q .. ':limiter')
  if ended and linger == 0 and left > ended - now + 1000 then
    ended = nil  -- another program has opened a window since, or closed the queue for a while
  end
  if left <= 0 or (ended and ended <= now) then
    call('DEL', Q .. ':limiter', Q .. ':jobmill:window')
    return max
  end
  return math.max(0, max - used), ended or now + left
end

-- How many jobs a claim may take under pause and limits; and the room in the window, and when the window ends.
local function max_claims(c, running)
  local room, window_ends = room_in_window()
  local free = concurrency and concurrency - running
  return paused and 0 or math.min(c.n, room or c.n, free or c.n), room, window_ends
end

local function count_in_window(k)
  if k > 0 and meta[3] and call('INCRBY', Q .. ':limiter', k) == k then
    local duration = math.floor(tonumber(meta[4]) or 0)
    call('PEXPIRE', Q .. ':limiter', duration + linger)
    call('SET', Q .. ':jobmill:window', now + duration, 'PX', math.max(1, duration + linger))
  end
end

-- What a claim must know from the flat hash of a job: its name, the number of its claims, whether the job must fail,
-- the scheduler of the job if Node made the job, whether it was held, whether its last claim was a claim ahead, and
-- whether an earlier loss of such a claim was no crash.
local function peek(h)
  local name, ats, doomed, sid, ours, held, marked, forgiven = nil, 0, false, nil, false, false, false, false
  for i = 1, #h, 2 do
    local field = h[i]
    if field == 'name' then
      name = h[i + 1]
    elseif field == 'jm' then
      ours = true
    elseif field == 'ats' then
      ats = tonumber(h[i + 1]) or 0
    elseif field == 'defa' then
      doomed = true
    elseif field == 'rjk' then
      sid = h[i + 1]
    elseif field == 'jmh' then
      held = true
    elseif field == 'jmw' then
      marked = true
    elseif field == 'jml' then
      forgiven = true
    end
  end
  return name, ats, doomed, not ours and sid or nil, held, marked, forgiven
end

-- 1 if a run is older than the current run of its scheduler. When Node claims a run, it creates the next run at once.
local function is_older_run(id)
  local sid, slot = string.match(id, '^repeat:(.*):([^:]*)$')
  return sid and call('ZSCORE', Q .. ':repeat', sid) ~= slot and 1 or 0
end

-- If Node made a run from a scheduler of Jobmill, the run becomes a job of Jobmill: it gets our fields.
local function adopt(id, h, sid)
  local record = redis.pcall('HMGET', Q .. ':repeat:' .. sid, 'jmr', 'jmo', 'jmz')
  if record[1] then
    local own = {'jm', '0', 'jmr', record[1]}
    if record[2] then
      own[5], own[6] = 'jmo', record[2]
    end
    if record[3] then
      own[#own + 1], own[#own + 2] = 'jmz', record[3]
    end
    call('HSET', job_key(id), unpack(own))
    for i = 1, #own do
      h[#h + 1] = own[i]
    end
  end
end

local function feed_claim(c, id, h, name, crashed)
  local errors = 0
  for i = 1, #h, 2 do
    if h[i] == 'jme' or (h[i] == 'atm' and errors == 0) then
      errors = tonumber(h[i + 1]) or 0
    end
  end
  if crashed then
    feed_event('lease_lost', id, name, errors + 1)
  end
  feed_event('claimed', id, name, errors + 1, cjson.encode({worker = c.worker}))
end

local function make_lock(c)
  c.lock = lock_value(c.token, c.lease_ms)
  c.lock_ms = string.format('%.0f', c.lease_ms + linger)
end

-- The room for a job: more than 0 if this claim may take it, 0 if it may not now, -1 if this worker does not know the name.
-- If there is no name, the hash is missing or broken, and any claim may take the job.
local function room_for(c, id, name, not_these)
  if not_these[id] then
    return 0
  end
  return type(name) ~= 'string' and 1 or c.names[name] or -1
end

-- Gives a job in `active` its lease, and adds it to `taken`: id, hash before, 0 if it waited, 1 if it was running, 2 if
-- it was running but has not crashed, because the lost lease was its first one of a claim ahead; is older run. Returns 1 if the job counts for the rate limit, otherwise 0.
local function take(c, id, crashed, taken)
  local key = job_key(id)
  local h = redis.pcall('HGETALL', key)
  local name, ats, doomed, sid, held, marked, forgiven = peek(h)
  if name then
    c.names[name] = c.names[name] - 1
  elseif set_aside(id) then
    h = call('HGETALL', key)
  else
    call('LREM', ACTIVE, 1, id)
    return 0  -- not a job
  end
  if sid then
    adopt(id, h, sid)
  end
  if held then
    -- Node has freed it, because a child has failed. Nothing may keep it from succeeding.
    call('HDEL', key, 'jmh')
    call('SREM', key .. ':dependencies', Q .. ':jobmill:hold')
  end
  local lane = crashed and lanes_rule and redis.pcall('HGET', key, 'jmz')
  if type(lane) == 'string' then
    lanes.take_slot(id, lane)  -- Node has begun it
  end
  local uncounted = crashed and marked and not forgiven
  if uncounted then
    call('HSET', key, 'jml', '1')
  elseif crashed then
    if type(redis.pcall('HINCRBY', key, 'stc', 1)) ~= 'number' then
      call('HSET', key, 'stc', 1)  -- it was no number
    end
  end
  if crashed then
    event('waiting', 'jobId', id, 'prev', 'active')
    event('stalled', 'jobId', id)
  end
  taken[#taken + 1] = {id, h, uncounted and 2 or crashed and 1 or 0, is_older_run(id)}
  call('HSET', key, 'processedOn', now_text, 'pb', c.worker, 'ats', ats + 1)
  if c.ahead then
    call('HSET', key, 'jmw', '1')
  elseif marked then
    call('HDEL', key, 'jmw')
  end
  call('SET', key .. ':lock', c.lock, 'PX', c.lock_ms)
  call('XADD', EVENTS, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  if feed_on then
    feed_claim(c, id, h, name, crashed)
  end
  return doomed and 0 or 1
end

-- The ids of up to `n` waiting jobs after the first `skip`, in claim order, and the list or set that has them.
local function waiting_ids(skip, n)
  local found = call('LRANGE', WAIT, -skip - n, -skip - 1)
  if #found > 0 then
    local ids = {}
    for i = #found, 1, -1 do
      ids[#ids + 1] = found[i]
    end
    return ids, 'wait'
  end
  local rank = math.max(0, skip - call('LLEN', WAIT))
  return call('ZRANGE', Q .. ':prioritized', rank, rank + n - 1), 'prioritized'
end

-- The lane of a job that waits, but has no slot in its lane; otherwise nil.
local function lane_without_slot(id)
  local h = redis.pcall('HMGET', job_key(id), 'jmz', 'jmj', 'rjk', 'jm')
  if h.err then
    return nil
  elseif h[3] and not h[4] then
    -- Node made this run from a scheduler of ours: see adopt().
    h[1] = call('HGET', Q .. ':repeat:' .. h[3], 'jmz')
    if h[1] then
      call('HSET', job_key(id), 'jmz', h[1])
    end
  end
  return h[1] and lanes.is_astray(h[1], h[2]) and h[1] or nil
end

-- Takes up to `max_taken` waiting jobs, in order; the others stay where they are.
-- Redis cannot select jobs by name. So one call reads up to 1,000 jobs and passes over those whose names this worker does
-- not know. Four results: whether more jobs wait for this claim or for a later claim with the same names; whether jobs were
-- passed over; if not all jobs were read, the number of jobs that the next call must skip; and the number of jobs that
-- were read after the last job that was taken.
local function claim_waiting(c, max_taken, not_these, taken)
  local max_scanned = not c.skip and c.scan or MAX_SCANNED
  local passed, scanned, fruitless, limited, left = c.skip or 0, 0, 0, 0, false
  while #taken < max_taken and scanned < max_scanned do
    local ids, set = waiting_ids(passed, math.min(max_scanned - scanned, math.max(max_taken - #taken, MIN_READ)))
    if #ids == 0 then
      if call('ZCARD', Q .. ':prioritized') == 0 then
        call('DEL', Q .. ':pc')
      end
      break
    end
    for _, id in ipairs(ids) do
      if #taken == max_taken then
        break
      end
      scanned = scanned + 1
      local h = redis.pcall('HMGET', job_key(id), 'name', 'jmn')
      local room = room_for(c, id, h[1], not_these)
      local lane = lanes_rule and room > 0 and lane_without_slot(id)
      if lane then
        -- Its lane gives it a slot again, perhaps at once.
        take_out(id, set)
        lanes.join(id, lane, now, set == 'wait' and 'waiting' or set)
        lanes.fill_changed()
        break
      end
      if room > 0 and (tonumber(h[2]) or 0) <= now then
        -- To active at once, as in exchange.lua.
        if set == 'wait' and passed == 0 then
          call('LMOVE', WAIT, ACTIVE, 'RIGHT', 'LEFT')
        else
          take_out(id, set)
          call('LPUSH', ACTIVE, id)
        end
        -- BullMQ before version 5 puts markers such as "0:0" into this list. A marker has no hash.
        if string.sub(id, 1, 2) == '0:' and call('EXISTS', job_key(id)) == 0 then
          call('LREM', ACTIVE, 1, id)
        else
          limited = limited + take(c, id, false, taken)
          fruitless = 0
        end
      else
        left = left or room == 0
        passed = passed + 1
        fruitless = fruitless + 1
      end
    end
  end
  count_in_window(limited)
  left = left or (#taken == max_taken and call('LLEN', WAIT) + call('ZCARD', Q .. ':prioritized') > 0)
  local is_cut = scanned >= MAX_SCANNED and #taken < max_taken
  return left, passed > 0, is_cut and passed or nil, fruitless
end
