-- recover: takes over running jobs whose lease has ended, whoever had them; they stay where they are, in `active`.
-- ask: claim as in exchange, not_these [id]. Returns: claimed, when the next of our leases ends or -1, whether some were left.
--- include base
--- include lease
--- include claim

local c = ask.claim
local not_these = {}
for _, id in ipairs(ask.not_these) do
  not_these[id] = true
end
local ids = call('LRANGE', Q .. ':active', 0, -1)
local ended = {}
local next_end = -1
for i = #ids, 1, -1 do
  local value = call('GET', job_key(ids[i]) .. ':lock')
  local at = value and ends(value)
  if not value or (at and at <= now) then
    ended[#ended + 1] = ids[i]
  elseif at and (next_end < 0 or at < next_end) then
    next_end = at
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
local counted = 0
for _, id in ipairs(ended) do
  local h = #taken < most and call('HGETALL', job_key(id)) or {}
  if #taken >= most then
    left = true
  else
    local fits, is_unknown = has_room(c.names, h, id, not_these)
    if fits then
      if #taken == 0 then
        call('XTRIM', Q .. ':events', 'MAXLEN', '~', max_events)
      end
      counted = counted + (take(c, id, h, true) and 0 or 1)
      call('SREM', Q .. ':stalled', id)
      taken[#taken + 1] = {id, h, 1}
    else
      left = left or not is_unknown
    end
  end
end
count_in_window(counted)
return {taken, next_end, left and 1 or 0}
