-- exchange: settles what is finished, then claims what is free; never a job that the same call settles.
-- ask: plain [[id, token, result, age]], settle [settlement], claim {n, token, lease_ms, worker, worker_json, names}, not_these [id]
-- Returns: answers per plain one, answers per settlement, claimed [id, hash before, crashed], next due ms or -1, whether
--   only foreign jobs wait, feed on.
--- include base
--- include lease
--- include resolve
--- include lines
--- include aside
--- include claim

-- Measured on one slot: making these functions cost 11 of 36 us a call, and most calls need none of them.
local function rarely()
--- include add
--- include runs
--- include parents
--- include keep
--- include settle
  return settle
end

local plain, others = ask.plain, ask.settle
local plain_answers, answers = {}, {}
local not_these = {}
local ended = false
for _, id in ipairs(ask.not_these or {}) do
  not_these[id] = true
end
if #plain + #others > 0 then
  trim_events()
end

-- Jobs of ours that succeeded at their first attempt, and have neither keys nor parents: all of them in a few steps.
-- Measured at 50 a call, with settle alone 32 us a job, with this 21.
local function settle_plain()
  local n = #plain
  local locks, children = {}, {}
  for i = 1, n do
    local key = job_key(plain[i][1])
    locks[i] = key .. ':lock'
    children[2 * i - 1], children[2 * i] = key .. ':dependencies', key .. ':unsuccessful'
  end
  local values = call('MGET', unpack(locks))
  local has_children = call('EXISTS', unpack(children)) > 0
  local done_locks, done, scored, expiring = {}, {}, {}, {}
  for i = 1, n do
    local s = plain[i]
    local id, result = s[1], s[3]
    local key = job_key(id)
    not_these[id] = true
    if not holds(values[i], s[2]) then
      plain_answers[i] = 'lost'
    elseif has_children or redis.pcall('HEXISTS', key, 'parentKey') ~= 0 then
      -- A flow took the job in while it ran; or its key is no hash any more.
      others[#others + 1] = {id = id, token = s[2], state = 'succeeded', outcome = 'succeeded', errors = 0, crashes = 0,
        result = result, keep = {age = s[4]}, answers_plain = i}
    elseif call('LREM', Q .. ':active', -1, id) == 0 then
      plain_answers[i] = 'lost'
    else
      call('HSET', key, 'finishedOn', now_text, 'returnvalue', result, 'atm', '1')
      call('XADD', EVENTS, '*', 'event', 'completed', 'jobId', id, 'returnvalue', result, 'prev', 'active')
      local k = #done + 1
      done[k], done_locks[k] = id, locks[i]
      scored[2 * k - 1], scored[2 * k] = now_text, id
      if s[4] ~= 604800000 then  -- the default, of which nothing is noted: see keep.lua
        expiring[#expiring + 1], expiring[#expiring + 2] = s[4] and now + s[4] or '+inf', id
      end
      plain_answers[i] = 'done'
    end
  end
  if #done > 0 then
    ended = true
    call('DEL', unpack(done_locks))
    call('ZADD', Q .. ':completed', unpack(scored))
    call('SREM', Q .. ':stalled', unpack(done))
  end
  if #expiring > 0 then
    call('ZADD', Q .. ':jobmill:expiry', unpack(expiring))
  end
end

if #plain > 0 then
  settle_plain()
end
if #others > 0 then
  local settle = rarely()
  for i, s in ipairs(others) do
    not_these[resolve(s.id)] = true
    local answer = settle(s)
    if s.answers_plain then
      plain_answers[s.answers_plain] = answer
    else
      answers[i] = answer
    end
    ended = ended or (answer == 'done' and (s.state ~= 'waiting' or s.runs ~= nil))
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
  return {plain_answers, answers, {}, -1, 0, feed_on and 1 or 0}
end

local first = promote()
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
  make_lock(c)
  left, passed = claim_waiting(c, most, c.names, not_these, taken)
end

-- When claiming again may bring something; and whoever else sleeps should look where something is left.
local next_due = -1
local is_empty = line_is_empty()
line_grew = not is_empty
set_markers()
if not paused and not (concurrency and active + #taken >= concurrency) then
  next_due = first or -1
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
  if #taken == 0 and next_due < 0 then
    tell_drained()
  end
end
return {plain_answers, answers, taken, next_due, passed and not left and #taken == 0 and 1 or 0, feed_on and 1 or 0}
