-- Back to its old position: before all jobs that were added after it. Jobs with another due time (jmd) have no such position.
local MAX_PASSED = 200

local function is_before(other, seq)
  local h = redis.pcall('HMGET', job_key(other), 'jm', 'jmd')
  local its_seq = tonumber(h[1])
  return its_seq and not h[2] and its_seq < seq
end

local function back_to_wait(id, seq)
  local passed = 0
  local last = seq and call('LINDEX', wait_key(), 0)
  if last and is_before(last, seq) then
    call('LPUSH', wait_key(), id)  -- all others were added before it
    return
  end
  if last then
    local front = call('LRANGE', wait_key(), -MAX_PASSED, -1)
    for i = 1, #front do
      if is_before(front[i], seq) then
        passed = #front - i + 1
        break
      end
    end
  end
  local behind = {id}
  local aside = passed > 0 and call('RPOP', wait_key(), passed) or {}
  for i = #aside, 1, -1 do
    behind[#behind + 1] = aside[i]
  end
  call('RPUSH', wait_key(), unpack(behind))
end

local function back_to_prioritized(id, priority, seq)
  local base = priority * TWO_32
  -- Scores before the first of a priority belong to it as well: no counter gets that far.
  local front = call('ZRANGEBYSCORE', Q .. ':prioritized', base - TWO_32 / 2, base + TWO_32 / 2, 'WITHSCORES',
    'LIMIT', 0, MAX_PASSED)
  local passed = 0
  for i = 1, seq and #front or 0, 2 do
    if is_before(front[i], seq) then
      passed = i
    end
  end
  local score = base
  if passed > 0 then
    score = front[passed + 1]
  elseif front[2] then
    score = math.min(base, front[2] - 1)
  end
  -- Those that stay in front make room.
  for i = 1, passed, 2 do
    call('ZADD', Q .. ':prioritized', front[i + 1] - 1, front[i])
  end
  call('ZADD', Q .. ':prioritized', score, id)
end
