-- The flow of a staged job is complete: the job may run, unless it waits for others. 1 if it was staged, otherwise 0.
local function free_staged(id)
  local key = job_key(id)
  if call('SREM', key .. ':dependencies', stage()) == 0 then
    return 0
  end
  local jmg = call('HGET', key, 'jmg')
  if call('HEXISTS', key, 'defa') == 1 or not must_hold(key, jmg or '[]') then
    if not stays_held(id) then
      release(id)
    end
  end
  return 1
end
