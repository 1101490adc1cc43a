-- A live recurring job gets another rule; where it runs, after this run. `old`: its jmr with the new rule, and run: sid, name,
-- data, opts, priority, record (flat), slot, own.
local function update_run(live, run, old)
  local key = job_key(live)
  local h = call('HMGET', key, 'jmc', 'ats', 'jmh', 'jmz')
  local ic = tonumber(call('HGET', Q .. ':repeat:' .. run.sid, 'ic')) or 1
  old.revision = (old.revision or 0) + 1
  run.own.jmr = cjson.encode(old)
  run.own.jmz = h[4] or nil
  note_rearm(run.sid, run.opts['repeat'])
  write_record(run.sid, run.name, ic, run.data, run.record, run.own)
  local _, set = state_of(live)
  if set == 'active' then
    call('HSET', key, 'jmr', run.own.jmr, 'jmx', run.slot)
    return live
  end
  take_out(live, set)
  delete_keys(live)
  run.own.jmu = now
  run.own.jmc = (tonumber(h[1]) or 0) + (tonumber(h[2]) or 0)
  run.opts['repeat'].count = ic
  local id = add_run(run.sid, run.slot, run)
  if set == 'waiting-children' and h[3] then
    -- It stays held, and is due as the new rule says.
    local held = cjson.decode(h[3])
    held.due = {at_ms = run.slot, after_ms = 0}
    local _, its_set = state_of(id)
    take_out(id, its_set)
    hold(id, cjson.encode(held), #held.by > 0, math.max(0, run.slot - now), its_set == 'wait' and 'waiting' or its_set)
  end
  return id
end
