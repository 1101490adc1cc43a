-- configure: pause, limits and feed of a queue. ask: set {field: value}, clear [field], paused or nil, wakes: a limit changed,
-- lane_rule: the rule for lanes in JSON, "" for none, nil if it does not change; max_lanes: how many lanes follow it at once.
-- Returns: how many lanes follow a new rule now, whether there are more; and
-- paused, concurrency, max, duration, opts.maxLenEvents, jmfeed, jmpause, jmlanes, as they are now.
--- include request
--- include events

local meta_key = Q .. ':meta'
-- A queue can be paused even when maxmemory is reached: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
local function is_job_waiting()
  return call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
end

if ask.paused == true then
  call('HSET', meta_key, 'paused', 1)
  call('DEL', Q .. ':marker')
  if ask.v5 and not paused then
    -- As BullMQ 5 does it: the waiting jobs move to a list of their own, behind jobs that were added earlier. A rename
    -- alone would lose the jobs there.
    if call('EXISTS', Q .. ':wait') == 1 and call('EXISTS', Q .. ':paused') == 0 then
      call('RENAME', Q .. ':wait', Q .. ':paused')
    end
    while call('LMOVE', Q .. ':wait', Q .. ':paused', 'RIGHT', 'LEFT') do
    end
  end
  event('paused')
elseif ask.paused == false then
--- include resume
  resume()
  waiting_grew = is_job_waiting()
  delayed_changed = not waiting_grew
end
for field, value in pairs(ask.set) do
  call('HSET', meta_key, field, value)
end
if #ask.clear > 0 then
  call('HDEL', meta_key, unpack(ask.clear))
end
if ask.wakes then
  -- A sleeping worker may have room now.
  concurrency = tonumber(call('HGET', meta_key, 'concurrency'))
  waiting_grew = is_job_waiting()
end
local done, more = 0, false
if ask.lane_rule and ask.lane_rule ~= (meta[9] or '') then
--- include lane_module
  call('HSET', meta_key, 'jmlanes', ask.lane_rule)
  lanes_rule = ask.lane_rule
  call('ZADD', Q .. ':jobmill:lanes:watch', 'NX', now_text, '')
  call('SET', Q .. ':jobmill:lanes:sweep', '')
  done, more = lanes.sweep(ask.max_lanes)
end
set_markers()
return {done, more and 1 or 0, unpack(call('HMGET', meta_key, 'paused', 'concurrency', 'max', 'duration',
  'opts.maxLenEvents', 'jmfeed', 'jmpause', 'jmlanes'))}
