-- exchange: settles what is finished, then claims what is free; never a job that the same call settles.
-- ask: settle [settlement], claim {n, token, lease_ms, worker, worker_json, names}, not_these [id]
-- Returns: answers per settlement, claimed [id, hash before, crashed], next due ms or -1, whether foreign jobs wait, feed on.
--- include base
--- include places
--- include add
--- include runs
--- include parents
--- include keep
--- include lease
--- include resolve
--- include settle
--- include claim

local answers = {}
local not_these = {}
local ended = false
for _, id in ipairs(ask.not_these or {}) do
  not_these[id] = true
end
if #ask.settle > 0 then
  trim_events()
  for i, s in ipairs(ask.settle) do
    not_these[resolve(s.id)] = true
    answers[i] = settle(s)
    ended = ended or (answers[i] == 'done' and s.state ~= 'waiting')
  end
end

local function line_is_empty()
  return call('LLEN', Q .. ':wait') == 0 and call('ZCARD', Q .. ':prioritized') == 0
end

local function tell_drained()
  if ended and line_is_empty() and call('LLEN', Q .. ':active') == 0 then
    event('drained')
  end
end

local c = ask.claim
if not c then
  set_markers()
  tell_drained()
  return {answers, {}, -1, 0, feed_on and 1 or 0}
end

promote()
local room, window_ends = room_in_window()
local active = concurrency and call('LLEN', Q .. ':active')
local most = paused and 0 or c.n
if concurrency then
  most = math.min(most, concurrency - active)
end
if room then
  most = math.min(most, room)
end
local taken = {}
local left, passed = false, false
if most > 0 then
  left, passed = claim_waiting(c, most, c.names, not_these, taken)
  local counted = 0
  local ids = {}
  for i, one in ipairs(taken) do
    ids[i] = one[1]
    counted = counted + (take(c, one[1], one[2], false) and 0 or 1)
  end
  if #ids > 0 then
    call('LPUSH', Q .. ':active', unpack(ids))
    count_in_window(counted)
  end
end

-- When claiming again may bring something; and whoever else sleeps should look where something is left.
local next_due = -1
local is_empty = line_is_empty()
line_grew = not is_empty
set_markers()
if not paused and not (concurrency and active + #taken >= concurrency) then
  local first = call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
  if first[1] then
    next_due = math.floor(tonumber(first[2]) / 4096)
  end
  if left or (not is_empty and not passed) then
    next_due = now
  end
  if room and next_due >= 0 then
    if #taken > 0 then
      room, window_ends = room_in_window()
    end
    if room == 0 then
      next_due = math.max(next_due, window_ends)
    end
  end
end
if ended and #taken == 0 and next_due < 0 and not paused and not (concurrency and active >= concurrency) then
  tell_drained()
end
return {answers, taken, next_due, passed and not left and #taken == 0 and 1 or 0, feed_on and 1 or 0}
