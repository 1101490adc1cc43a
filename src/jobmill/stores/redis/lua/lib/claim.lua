-- Claims jobs. `c` is the claim: n, token, lease_ms, worker, and names {name: room}. The room of a name is the number of
-- jobs of this name that the claim may still take.
local MAX_SCANNED = 1000
local EVENTS = Q .. ':events'

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

local function count_in_window(k)
  if k > 0 and meta[3] and call('INCRBY', Q .. ':limiter', k) == k then
    local duration = math.floor(tonumber(meta[4]) or 0)
    call('PEXPIRE', Q .. ':limiter', duration + linger)
    call('SET', Q .. ':jobmill:window', now + duration, 'PX', math.max(1, duration + linger))
  end
end

-- What a claim must know from the flat hash of a job: its name, the number of its claims, whether the job must fail, and
-- the scheduler of the job if Node made the job.
local function peek(h)
  local name, ats, doomed, sid, ours = nil, 0, false, nil, false
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
    end
  end
  return name, ats, doomed, not ours and sid or nil
end

-- 1 if a run is older than the current run of its scheduler. When Node claims a run, it creates the next run at once.
local function is_older_run(id)
  local sid, slot = string.match(id, '^repeat:(.*):([^:]*)$')
  return sid and call('ZSCORE', Q .. ':repeat', sid) ~= slot and 1 or 0
end

-- If Node made a run from a scheduler of Jobmill, the run becomes a job of Jobmill: it gets our fields.
local function adopt(id, h, sid)
  local record = redis.pcall('HMGET', Q .. ':repeat:' .. sid, 'jmr', 'jmo')
  if record[1] then
    local own = {'jm', '0', 'jmr', record[1]}
    if record[2] then
      own[5], own[6] = 'jmo', record[2]
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

-- Gives the job its lease: writes its lock and the fields of a running job.
local function take(c, id, h, name, ats, crashed, sid)
  local key = job_key(id)
  if sid then
    adopt(id, h, sid)
  end
  if crashed then
    if type(redis.pcall('HINCRBY', key, 'stc', 1)) ~= 'number' then
      call('HSET', key, 'stc', 1)  -- it was no number
    end
    event('waiting', 'jobId', id, 'prev', 'active')
    event('stalled', 'jobId', id)
  end
  call('HSET', key, 'processedOn', now_text, 'pb', c.worker, 'ats', ats + 1)
  call('SET', key .. ':lock', c.lock, 'PX', c.lock_ms)
  call('XADD', EVENTS, '*', 'event', 'active', 'jobId', id, 'prev', 'waiting')
  if feed_on then
    feed_claim(c, id, h, name, crashed)
  end
end

local function make_lock(c)
  c.lock = lock_value(c.token, c.lease_ms)
  c.lock_ms = string.format('%.0f', c.lease_ms + linger)
end

-- Whether this claim may take the job. If so, it reduces the room of the job's name by one. If there is no name, the hash
-- is missing or broken, and any claim may take the job. The second result: whether this worker does not know the name.
local function has_room(rooms, name)
  if not name then
    return true
  end
  local room = rooms[name]
  if room and room > 0 then
    rooms[name] = room - 1
    return true
  end
  return false, room == nil
end

-- Earlier calls have read the first `skip` waiting jobs. This call reads the next 1,000 jobs without moving them.
-- Two results: whether it left a job of a known name, for example because the name has no room; and, if there are more
-- jobs, how many jobs the next call must skip.
local function claim_beyond(skip, most, rooms, not_these, taken, take_or_pass)
  local waiting = call('LLEN', Q .. ':wait')
  local found = call('LRANGE', Q .. ':wait', -skip - MAX_SCANNED, -skip - 1)
  local ids = {}
  for i = #found, 1, -1 do
    ids[#ids + 1] = found[i]
  end
  local in_wait, rank = #ids, math.max(0, skip - waiting)
  if in_wait < MAX_SCANNED then
    for _, id in ipairs(call('ZRANGE', Q .. ':prioritized', rank, rank + MAX_SCANNED - in_wait - 1)) do
      ids[#ids + 1] = id
    end
  end
  local left = false
  for i, id in ipairs(ids) do
    local name = redis.pcall('HGET', job_key(id), 'name')
    local room = type(name) ~= 'string' and 1 or rooms[name]
    if room and (room <= 0 or not_these[id]) then
      left = true
    elseif room then
      call(i <= in_wait and 'LREM' or 'ZREM', Q .. (i <= in_wait and ':wait' or ':prioritized'),
        unpack(i <= in_wait and {-1, id} or {id}))
      call('LPUSH', Q .. ':active', id)
      take_or_pass(id)
      if #taken == most then
        return left, nil
      end
    end
  end
  return left, #ids == MAX_SCANNED and skip + #ids - #taken or nil
end

-- Takes up to `most` waiting jobs, in order, and puts the jobs that it does not take back into their old positions.
-- Redis cannot select jobs by name. So one call reads up to 1,000 jobs and passes over those whose names this worker does
-- not know. Four results: whether more jobs wait for this claim or for a later claim with the same names; whether jobs were
-- passed over; if not all jobs were read, the number of jobs that the next call must skip; and the number of jobs that
-- were read after the last job that was taken.
local function claim_waiting(c, most, rooms, not_these, taken)
  local scanned, passed, fruitless = 0, {}, 0
  local limited = 0  -- how many of them count for the rate limit
  local function take_or_pass(id, score)
    scanned = scanned + 1
    local name = redis.pcall('HGET', job_key(id), 'name')
    local room = type(name) == 'string' and (not_these[id] and 0 or rooms[name] or -1)
    if room and room <= 0 then
      passed[#passed + 1] = {id, score, room < 0}
      fruitless = fruitless + 1
      return
    end
    local h = redis.pcall('HGETALL', job_key(id))
    local ats, doomed, sid
    name, ats, doomed, sid = peek(h)
    if not name then
      if not set_aside(id) then
        call('LREM', Q .. ':active', 1, id)
        return  -- not a job
      end
      h = call('HGETALL', job_key(id))
    end
    local fits, is_unknown = false, false
    if not not_these[id] then
      fits, is_unknown = has_room(rooms, name)
    end
    if fits then
      fruitless = 0
      taken[#taken + 1] = {id, h, 0, is_older_run(id)}
      take(c, id, h, name, ats, false, sid)
      limited = limited + (doomed and 0 or 1)
    else
      passed[#passed + 1] = {id, score, is_unknown}
    end
  end
  local left, beyond = false, nil
  if c.skip then
    left, beyond = claim_beyond(c.skip, most, rooms, not_these, taken, take_or_pass)
    scanned = MAX_SCANNED
  end
  local max_scanned = c.scan or MAX_SCANNED
  while #taken < most and scanned < max_scanned do
    local ids = call('RPOP', Q .. ':wait', most - #taken)
    if not ids or #ids == 0 then
      break
    end
    call('LPUSH', Q .. ':active', unpack(ids))  -- at once, as in exchange.lua
    for i = 1, #ids do
      -- BullMQ before version 5 puts markers such as "0:0" into this list. A marker has no hash.
      if string.sub(ids[i], 1, 2) ~= '0:' or call('EXISTS', job_key(ids[i])) == 1 then
        take_or_pass(ids[i], nil)
      else
        call('LREM', Q .. ':active', 1, ids[i])
      end
    end
  end
  while #taken < most and scanned < max_scanned do
    local popped = call('ZPOPMIN', Q .. ':prioritized', most - #taken)
    if #popped == 0 then
      if #passed == 0 then  -- else some go back there
        call('DEL', Q .. ':pc')
      end
      break
    end
    for i = 1, #popped, 2 do
      call('LPUSH', Q .. ':active', popped[i])
    end
    for i = 1, #popped, 2 do
      take_or_pass(popped[i], popped[i + 1])
    end
  end
  left = left or (#taken == most and call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0)
  for i = #passed, 1, -1 do
    local id, score, is_unknown = passed[i][1], passed[i][2], passed[i][3]
    call('LREM', Q .. ':active', 1, id)
    if score then
      call('ZADD', Q .. ':prioritized', score, id)
    else
      call('RPUSH', Q .. ':wait', id)
    end
    left = left or not is_unknown
  end
  if not c.skip and not c.scan and scanned >= MAX_SCANNED and #taken < most then
    beyond = #passed
  end
  count_in_window(limited)
  return left, #passed > 0 or c.skip, beyond, fruitless
end
