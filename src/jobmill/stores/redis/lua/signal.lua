-- signal: stores a signal for a live job; one that waits for it is due at once. ask: id, name, value (JSON).
-- Returns: "stored", "exists", "final" or "unknown".
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include job_id
--- include held

local id = resolve(ask.id)
local state, set = state_of(id)
if not state then
  return 'unknown'
elseif state ~= 'waiting' and state ~= 'running' then
  return 'final'
end
local key = job_key(id)
if call('HSETNX', key, 'jmi:' .. ask.name, ask.value) == 0 then
  return 'exists'
end
if state == 'waiting' and call('HGET', key, 'jmv') == ask.name then
  if set == 'waiting-children' then
    local held = call('HGET', key, 'jmh')
    if held then
      local due = string.format('"due":{"at_ms":%.0f,"after_ms":0}', now)
      call('HSET', key, 'jmh', (string.gsub(held, '"due":%b{}', due)), 'jmu', now)
    end
    local lane = lane_of(id)
    if lane then
      if held then
        lanes.hold(id, lane)
      else
        lanes.join(id, lane, now)
      end
      set_markers()
    end
  else
    take_out(id, set)
    call('HSET', key, 'delay', 0, 'jmd', now, 'jmu', now)
    wait_until(id, now, tonumber(call('HGET', key, 'priority')) or 0, false, set == 'wait' and 'waiting' or set)
    delayed_changed = true
    set_markers()
  end
end
return 'stored'
