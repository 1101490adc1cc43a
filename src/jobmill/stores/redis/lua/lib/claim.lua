-- Taking jobs under a lease. c: n, token, lease_ms, worker, worker_json, names {name: room}
local MOST_LOOKED_AT = 1000

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
  if left <= 0 or (ended and ended <= now) then
    call('DEL', Q .. ':limiter', Q .. ':jobmill:window')
    return max
  end
  return math.max(0, max - used), ended or now + left
end

local function count_in_window(k)
  if k > 0 and said[3] and call('INCRBY', Q .. ':limiter', k) == k then
    local duration = tonumber(said[4]) or 0
    call('PEXPIRE', Q .. ':limiter', duration + linger)
    call('SET', Q .. ':jobmill:window', now + duration, 'PX', math.max(1, duration + linger))
  end
end

-- A flat hash, looked up.
local function of(h, field)
  for i = 1, #h, 2 do
    if h[i] == field then
      return h[i + 1]
    end
  end
  return nil
end

-- The job is ours now: what was stored before, for the answer.
local function take(c, id, h, crashed)
  local key = job_key(id)
  local atm, ats, name, doomed, jme = 0, 0, nil, nil, nil
  for i = 1, #h, 2 do
    local field = h[i]
    if field == 'ats' then
      ats = tonumber(h[i + 1]) or 0
    elseif field == 'atm' then
      atm = h[i + 1]
    elseif field == 'jme' then
      jme = h[i + 1]
    elseif field == 'name' then
      name = h[i + 1]
    elseif field == 'defa' then
      doomed = true
    end
  end
  if crashed then
    call('HINCRBY', key, 'stc', 1)
    event('waiting', 'jobId', id, 'prev', 'active')
    event('stalled', 'jobId', id)
  end
  call('HSET', key, 'processedOn', now, 'pb', c.worker, 'ats', ats + 1)
  lock(id, c.token, c.lease_ms)
  event('active', 'jobId', id, 'prev', 'waiting')
  if feed_on then
    local attempt = tonumber(jme or atm) + 1
    if crashed then
      tell('lease_lost', id, name, attempt)
    end
    tell('claimed', id, name, attempt, c.worker_json)
  end
  return doomed
end

-- Whether this claim may have the job; its room is used up. Without a name the hash is missing or broken: anybody's.
local function has_room(rooms, h, id, not_these)
  if not_these[id] then
    return false, false
  end
  local name = of(h, 'name')
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

-- Up to `most` jobs from the line, in order; others are put back as they stood. Redis cannot look for names: a job whose
-- name nobody here knows is passed over, 1,000 of them in one call; beyond that such jobs are taken too, and released by
-- the worker with a delay, so that they do not hide the others for ever.
local function claim_waiting(c, most, rooms, not_these, taken, rated)
  local looked, passed, unknown = 0, {}, {}
  local function consider(id, score)
    local h = call('HGETALL', job_key(id))
    local fits, is_unknown = has_room(rooms, h, id, not_these)
    if fits then
      taken[#taken + 1] = {id, h, 0}
    else
      passed[#passed + 1] = {id, score, is_unknown and h or nil}
    end
    looked = looked + 1
  end
  while #taken < most and looked < MOST_LOOKED_AT do
    local ids = call('RPOP', Q .. ':wait', most - #taken)
    if not ids or #ids == 0 then
      break
    end
    for _, id in ipairs(ids) do
      if string.sub(id, 1, 2) ~= '0:' then  -- markers of versions before 5
        consider(id, nil)
      end
    end
  end
  while #taken < most and looked < MOST_LOOKED_AT do
    local popped = call('ZPOPMIN', Q .. ':prioritized', most - #taken)
    if #popped == 0 then
      call('DEL', Q .. ':pc')
      break
    end
    for i = 1, #popped, 2 do
      consider(popped[i], popped[i + 1])
    end
  end
  -- `left`: jobs that this claim, or the next of its kind, could have.
  local left = #taken == most
    and call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
  for i = #passed, 1, -1 do
    local id, score, h = passed[i][1], passed[i][2], passed[i][3]
    if h and looked >= MOST_LOOKED_AT and #taken < most then
      taken[#taken + 1] = {id, h, 0}
    elseif score then
      call('ZADD', Q .. ':prioritized', score, id)
    else
      call('RPUSH', Q .. ':wait', id)
    end
    left = left or not h
  end
  return left, #passed > 0
end
