-- recover: takes running jobs over whose lease has ended, also Node's; they stay in `active`.
-- ask: claim as in exchange, not_these [id]. Returns: claimed, when the next lease ends or -1, whether some were left,
--   [id, occurrence, rule] of schedulers that wait for us.
--- include request
--- include events
--- include lease
--- include repair
--- include claim
--- include schedulers

local c = ask.claim
local not_these = {}
for _, id in ipairs(ask.not_these) do
  not_these[id] = true
end
local ids = call('LRANGE', Q .. ':active', 0, -1)
local ended = {}
local next_end = -1
-- The oldest first. Locks of one claim are the same text: it is parsed once.
local known = {}
local enough = not concurrency and c.n or #ids
for last = #ids, 1, -1000 do
  if #ended > enough then
    break  -- the others are found after these have been taken over
  end
  local keys = {}
  for i = last, math.max(1, last - 999), -1 do
    keys[#keys + 1] = job_key(ids[i]) .. ':lock'
  end
  for k, value in ipairs(call('MGET', unpack(keys))) do
    local at = value and known[value]
    if value and at == nil then
      at = ends(value) or false
      known[value] = at
    end
    if not value or (linger > 0 and at and at <= now) then
      ended[#ended + 1] = ids[last - k + 1]
    else
      if not at or at <= now then
        -- A lock of Node's, or one of ours that should have ended: the server decides how long its key lives.
        local left = call('PTTL', keys[k])
        at = left ~= -1 and now + math.max(left, 1)
      end
      if at then
        next_end = next_end < 0 and at or math.min(at, next_end)
      end
    end
  end
end
local max_taken = max_claims(c, #ids - #ended)
local taken, left, limited = {}, false, 0
call('DEL', NOTHING)
make_lock(c)
for _, id in ipairs(ended) do
  if #taken >= max_taken then
    left = true
    break
  end
  local room = room_for(c, id, redis.pcall('HGET', job_key(id), 'name'), not_these)
  if room > 0 then
    limited = limited + take(c, id, true, taken)
    call('SREM', Q .. ':stalled', id)
  else
    left = left or room == 0  -- for the next call
  end
end
if #taken > 0 then
  trim_events()
end
count_in_window(limited)
if lanes_rule then
  lanes.fill_changed()
end
-- Node has ended a run, and could not add the next one.
local stopped = {}
for _, sid in ipairs(call('SMEMBERS', Q .. ':jobmill:rearm')) do
  local slot = call('ZSCORE', Q .. ':repeat', sid)
  if not slot then
    call('SREM', Q .. ':jobmill:rearm', sid)
  elseif not live_run(sid) then
    stopped[#stopped + 1] = {sid, slot, call('HGET', Q .. ':repeat:' .. sid, 'jmr')}
  end
end
return {taken, next_end, left and 1 or 0, stopped}
