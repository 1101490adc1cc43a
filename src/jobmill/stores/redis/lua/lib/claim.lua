-- Taking jobs under a lease. c: n, token, lease_ms, worker, worker_json, names {name: room}
local MOST_LOOKED_AT = 1000
local EVENTS = Q .. ':events'

-- How many claims the rate limit leaves in this window, and when that ends; nil without a limit.
local function room_in_window()
  local max = tonumber(said[3])
  if not max then
    return nil
  end
  local used = tonumber(call('GET', Q .. ':limiter')) or 0
  if used == 0 then
    return max
  end
  -- The key of Node's window lives as long as the window; of ours we know the end.
  local ended = tonumber(call('GET', Q .. ':jobmill:window'))
  local left = call('PTTL', Q .. ':limiter')
  if ended and linger == 0 and left > ended - now + 1000 then
    ended = nil  -- somebody has opened another window since, or closed the queue for a while
  end
  if left <= 0 or (ended and ended <= now) then
    call('DEL', Q .. ':limiter', Q .. ':jobmill:window')
    return max
  end
  return math.max(0, max - used), ended or now + left
end

local function count_in_window(k)
  if k > 0 and said[3] and call('INCRBY', Q .. ':limiter', k) == k then
    local duration = math.floor(tonumber(said[4]) or 0)
    call('PEXPIRE', Q .. ':limiter', duration + linger)
    call('SET', Q .. ':jobmill:window', now + duration, 'PX', math.max(1, duration + linger))
  end
end

-- What a claim must know of a job's flat hash: name, how often it was claimed, whether it must fail, its scheduler where
-- it is one's of Node's making.
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

-- Whether a run is not the present one of its scheduler: where Node has claimed one, the next is there already.
local function is_older_run(id)
  local sid, slot = string.match(id, '^repeat:(.*):([^:]*)$')
  return sid and call('ZSCORE', Q .. ':repeat', sid) ~= slot and 1 or 0
end

-- A run that Node made of a scheduler of ours is ours again.
local function adopt(id, h, sid)
  local said = redis.pcall('HMGET', Q .. ':repeat:' .. sid, 'jmr', 'jmo')
  if said[1] then
    local own = {'jm', '0', 'jmr', said[1]}
    if said[2] then
      own[5], own[6] = 'jmo', said[2]
    end
    call('HSET', job_key(id), unpack(own))
    for i = 1, #own do
      h[#h + 1] = own[i]
    end
  end
end

local function tell_claim(c, id, h, name, crashed)
  local errors = 0
  for i = 1, #h, 2 do
    if h[i] == 'jme' or (h[i] == 'atm' and errors == 0) then
      errors = tonumber(h[i + 1]) or 0
    end
  end
  if crashed then
    tell('lease_lost', id, name, errors + 1)
  end
  tell('claimed', id, name, errors + 1, c.worker_json)
end

-- The job is ours now.
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
    tell_claim(c, id, h, name, crashed)
  end
end

local function make_lock(c)
  c.lock = lock_value(c.token, c.lease_ms)
  c.lock_ms = string.format('%.0f', c.lease_ms + linger)
end

-- Whether this claim may have the job; its room is used up. Without a name the hash is missing or broken: anybody's.
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

-- The first `skip` of the line were looked at by earlier calls: of those behind them, 1,000 are looked at where they are.
-- Returns whether some had no room, and where the next call is to go on, if there are more.
local function claim_beyond(skip, most, rooms, not_these, taken, consider)
  local waiting = call('LLEN', Q .. ':wait')
  local found = call('LRANGE', Q .. ':wait', -skip - MOST_LOOKED_AT, -skip - 1)
  local ids = {}
  for i = #found, 1, -1 do
    ids[#ids + 1] = found[i]
  end
  local in_wait, rank = #ids, math.max(0, skip - waiting)
  if in_wait < MOST_LOOKED_AT then
    for _, id in ipairs(call('ZRANGE', Q .. ':prioritized', rank, rank + MOST_LOOKED_AT - in_wait - 1)) do
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
      consider(id)
      if #taken == most then
        return left, nil
      end
    end
  end
  return left, #ids == MOST_LOOKED_AT and skip + #ids - #taken or nil
end

-- Up to `most` jobs from the line, in order; others are put back as they stood. Redis cannot look for names: a job whose
-- name nobody here knows is passed over, up to 1,000 in one call. Returns whether there are more that this claim, or the
-- next of its kind, could have; whether some were passed over; and where to go on looking, if that was not all.
local function claim_waiting(c, most, rooms, not_these, taken)
  local looked, passed, in_vain = 0, {}, 0
  local limited = 0  -- how many of them count for the rate limit
  local function consider(id, score)
    looked = looked + 1
    local name = redis.pcall('HGET', job_key(id), 'name')
    local room = type(name) == 'string' and (not_these[id] and 0 or rooms[name] or -1)
    if room and room <= 0 then
      passed[#passed + 1] = {id, score, room < 0}
      in_vain = in_vain + 1
      return
    end
    local h = redis.pcall('HGETALL', job_key(id))
    local ats, doomed, sid
    name, ats, doomed, sid = peek(h)
    if not name then
      if not mend(id) then
        call('LREM', Q .. ':active', 1, id)
        return  -- nobody's
      end
      h = call('HGETALL', job_key(id))
    end
    local fits, is_unknown = false, false
    if not not_these[id] then
      fits, is_unknown = has_room(rooms, name)
    end
    if fits then
      in_vain = 0
      taken[#taken + 1] = {id, h, 0, is_older_run(id)}
      take(c, id, h, name, ats, false, sid)
      limited = limited + (doomed and 0 or 1)
    else
      passed[#passed + 1] = {id, score, is_unknown}
    end
  end
  local left, beyond = false, nil
  if c.skip then
    left, beyond = claim_beyond(c.skip, most, rooms, not_these, taken, consider)
    looked = MOST_LOOKED_AT
  end
  local most_looked_at = c.look or MOST_LOOKED_AT
  while #taken < most and looked < most_looked_at do
    local ids = call('RPOP', Q .. ':wait', most - #taken)
    if not ids or #ids == 0 then
      break
    end
    call('LPUSH', Q .. ':active', unpack(ids))  -- at once, as in exchange.lua
    for i = 1, #ids do
      -- Versions before 5 put markers there, "0:0": without a hash.
      if string.sub(ids[i], 1, 2) ~= '0:' or call('EXISTS', job_key(ids[i])) == 1 then
        consider(ids[i], nil)
      else
        call('LREM', Q .. ':active', 1, ids[i])
      end
    end
  end
  while #taken < most and looked < most_looked_at do
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
      consider(popped[i], popped[i + 1])
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
  if not c.skip and not c.look and looked >= MOST_LOOKED_AT and #taken < most then
    beyond = #passed
  end
  count_in_window(limited)
  return left, #passed > 0 or c.skip, beyond, in_vain
end
