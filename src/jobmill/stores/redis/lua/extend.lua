-- extend: prolongs leases to now + ms. ask: leases [[id, token]], ms. Returns: the positions of those that are lost, from 0.
--- include short_request
--- include lease
--- include job_id

call('DEL', NOTHING)
local lost = {}
local has_stalled = call('EXISTS', Q .. ':stalled') == 1
for i, lease in ipairs(ask.leases) do
  local id, token = resolve(lease[1]), lease[2]
  if holds(call('MGET', job_key(id) .. ':lock')[1], token) then
    lock(id, token, ask.ms)
    if has_stalled then
      call('SREM', Q .. ':stalled', id)
    end
  else
    lost[#lost + 1] = i - 1
  end
end
return lost
