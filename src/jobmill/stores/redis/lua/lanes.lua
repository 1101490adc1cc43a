-- lanes: the lanes of a queue, by name. ask: names, or after ("" for the start) and limit; most: how many jobs are counted.
-- Returns: for each, its name, its settings or "", how many jobs run, are admitted, ready and later, and when the rate allows
-- the next job, or -1.
--- include request
--- include events

if not lanes_rule then
  return {}
end
--- include lane_module

-- Whether a job with a slot runs. A job that was never claimed does not.
local function is_running(id)
  if call('EXISTS', job_key(id) .. ':lock') == 1 then
    return true
  end
  return redis.pcall('HEXISTS', job_key(id), 'ats') ~= 0 and call('LPOS', Q .. ':active', id) and true or false
end

local function describe(lane)
  local own = call('HGET', Q .. ':jobmill:lanes:own', lane) or ''
  local first, last = lanes.bounds_of(lane)
  local running, count = 0, 0
  for _, key in ipairs({lanes.slots_key(), lanes.begun_key()}) do
    for _, slot in ipairs(call('ZRANGEBYLEX', key, first, last, 'LIMIT', 0, ask.most - count)) do
      local _, member = lanes.read_slot(slot)
      running, count = running + (is_running(lanes.id_of(member)) and 1 or 0), count + 1
    end
  end
  local held = lanes.held_key(lane)
  local ready, later = call('ZCOUNT', held, 0, 0), call('ZCOUNT', held, '(0', '+inf')
  local is_limited = ready > 0 and lanes.limits_of(lane).rate
  local window = is_limited and call('HGET', Q .. ':jobmill:lanes:window', lane) or ''
  local again = tonumber(string.match(window, '(%d+)$')) or 0
  return {lane, own, running, count - running, math.min(ready, ask.most), math.min(later, ask.most), again > now and again or -1}
end

local found = {}
local names = ask.names
if not names then
  local from = ask.after == '' and '-' or '(' .. ask.after
  names = call('ZRANGEBYLEX', Q .. ':jobmill:lanes', from, '+', 'LIMIT', 0, ask.limit)
end
for i, lane in ipairs(names) do
  found[i] = describe(lane)
end
return found
