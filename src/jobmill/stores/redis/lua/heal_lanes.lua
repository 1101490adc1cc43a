-- heal_lanes: goes on with a rule that was changed, and checks the lanes that were not checked for longest.
-- ask: limit; sweeps: only the first. Returns: how many lanes follow the rule now, and whether there are more.
--- include request
--- include events

if not lanes_rule then
  return {0, 0}
end
--- include lane_module
-- Neither must this when maxmemory is reached: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
local done, more = lanes.sweep(ask.limit)
if not ask.sweeps then
  lanes.unblock(ask.limit, now_text)
  for _, lane in ipairs(call('ZRANGEBYSCORE', Q .. ':jobmill:lanes:watch', '-inf', now_text, 'LIMIT', 0, ask.limit)) do
    if lanes.is_enough() then
      break
    elseif lane ~= '' then
      call('ZADD', Q .. ':jobmill:lanes:watch', 'XX', now_text, lane)
      lanes.refresh({lane})
    end
  end
end
set_markers()
return {done, more and 1 or 0}
