-- relay: tells the dependents of jobs that have ended, where the call that ended them has not. KEYS[1]: a queue of relays.
-- ask: limit, texts (see flows.lua). Returns: how many were told, and whether there are more.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include flows

may_tell = ask.limit
local RELAYS = Q
local told, more = 0, false
call('DEL', RELAYS .. ':marker', RELAYS .. ':events', RELAYS .. ':meta')

local function ended_of(relay, child)
  local value = call('HGET', relay .. ':processed', child)
  local reason = call('HGET', relay .. ':failed', child)
  if value or not reason then
    return {value = value or nil}  -- it is gone without both
  end
  local h = call('HMGET', relay, 'line', 'cancelled')
  return failure(reason, h[1] or call('HGET', child, 'jmf') or nil, h[2] == '1')
end

for _ = 1, call('LLEN', RELAYS .. ':wait') do
  local id = call('LINDEX', RELAYS .. ':wait', -1)
  local relay = RELAYS .. ':' .. id
  local child = call('HGET', relay, 'child')
  if child then
    local count
    count, more = tell_relayed(relay, child, ended_of(relay, child))
    told = told + count
  end
  if more then
    break
  end
  call('LREM', RELAYS .. ':wait', 0, id)
  if not child or call('EXISTS', child) == 0 then
    delete_relay(RELAYS, id)
  end
end
return {told, more and 1 or 0}
