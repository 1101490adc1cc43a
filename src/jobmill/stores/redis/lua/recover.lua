-- recover: takes running jobs over whose lease has ended, also Node's; they stay in `active`.
-- ask: claim as in exchange, not_these [id]. Returns: claimed, when the next of our leases ends or -1, whether some were left.
--- include request
--- include events
--- include lease
--- include repair
--- include claim

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
for last = #ids, 1, -1200 do
  if #ended > enough then
    break  -- the others are found after these have been taken over
  end
  local keys = {}
  for i = last, math.max(1, last - 1199), -1 do
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
    elseif at then
      -- Not at once where it is about to end: the server decides how long its key lives.
      at = math.max(at, now + 10)
      next_end = next_end < 0 and at or math.min(at, next_end)
    end
  end
end
local most = paused and 0 or c.n
local room = room_in_window()
if room then
  most = math.min(most, room)
end
if concurrency then
  most = math.min(most, concurrency - (#ids - #ended))
end
local taken = {}
local left = false
local limited = 0
call('DEL', NOTHING)
make_lock(c)
for _, id in ipairs(ended) do
  if #taken >= most then
    left = true
    break
  end
  if not_these[id] then
    left = true  -- for the next call
  else
    local h = redis.pcall('HGETALL', job_key(id))
    local name, ats, doomed, sid = peek(h)
    local is_job = name or set_aside(id)
    if not name and is_job then
      h = call('HGETALL', job_key(id))
    end
    local fits, is_unknown = has_room(c.names, name)
    if not is_job then
      call('LREM', Q .. ':active', -1, id)
    elseif fits then
      take(c, id, h, name, ats, true, sid)
      call('SREM', Q .. ':stalled', id)
      taken[#taken + 1] = {id, h, 1, is_older_run(id)}
      limited = limited + (doomed and 0 or 1)
    else
      left = left or not is_unknown
    end
  end
end
if #taken > 0 then
  trim_events()
end
count_in_window(limited)
return {taken, next_end, left and 1 or 0}
