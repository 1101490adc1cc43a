-- configure: pause, limits and feed of a queue. ask: set {field: value}, clear [field], paused or nil, wakes: a limit changed.
-- Returns: paused, concurrency, max, duration, opts.maxLenEvents, jmfeed, as they are now.
--- include request
--- include events

local meta_key = Q .. ':meta'
-- A queue can be paused even when maxmemory is reached: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
-- Moves all jobs of a list from one end of it to one end of another list. A rename alone would lose the jobs there.
local function move_list(from, to, from_end, to_end)
  if call('EXISTS', from) == 1 and call('EXISTS', to) == 0 then
    call('RENAME', from, to)
  end
  while call('LMOVE', from, to, from_end, to_end) do
  end
end

local function is_job_waiting()
  return call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
end

if ask.paused == true then
  call('HSET', meta_key, 'paused', 1)
  call('DEL', Q .. ':marker')
  if ask.v5 and not paused then
    -- As BullMQ 5 does it: the waiting jobs move to a list of their own, behind jobs that were added earlier.
    move_list(Q .. ':wait', Q .. ':paused', 'RIGHT', 'LEFT')
  end
  event('paused')
elseif ask.paused == false then
  call('HDEL', meta_key, 'paused')
  paused = false
  -- Jobs that version 5 left there go to the front, in their order.
  move_list(Q .. ':paused', Q .. ':wait', 'LEFT', 'RIGHT')
  waiting_grew = is_job_waiting()
  delayed_changed = not waiting_grew
  event('resumed')
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
set_markers()
return call('HMGET', meta_key, 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'jmfeed')
