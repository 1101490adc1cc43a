-- configure: pause, limits and feed of a queue. ask: set {field: value}, clear [field], paused or nil, wakes: a limit changed.
-- Returns: paused, concurrency, max, duration, opts.maxLenEvents, jmfeed, as they are now.
--- include request
--- include events
--- include waiting
--- include repair
--- include state

local meta_key = Q .. ':meta'
-- A queue can be paused even when maxmemory is reached: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
-- As BullMQ 5 does it: the waiting jobs move to a list of their own, and back.
local function move_list(from, to)
  if ask.v5 and call('EXISTS', from) == 1 then
    if call('EXISTS', to) == 0 then
      call('RENAME', from, to)
    else
      -- A rename would lose the jobs there: these go behind them, because they were added later.
      local ids = call('LRANGE', from, 0, -1)
      for i = #ids, 1, -1 do
        call('LPUSH', to, ids[i])
      end
      call('DEL', from)
    end
  end
end

if ask.paused == true then
  call('HSET', meta_key, 'paused', 1)
  call('DEL', Q .. ':marker')
  if not paused then
    move_list(Q .. ':wait', Q .. ':paused')
  end
  event('paused')
elseif ask.paused == false then
  call('HDEL', meta_key, 'paused')
  paused = false
  -- Jobs that version 5 left there go to the front, in their order.
  if call('EXISTS', Q .. ':paused') == 1 then
    if call('EXISTS', Q .. ':wait') == 0 then
      call('RENAME', Q .. ':paused', Q .. ':wait')
    else
      for _, id in ipairs(call('LRANGE', Q .. ':paused', 0, -1)) do
        call('RPUSH', Q .. ':wait', id)
      end
      call('DEL', Q .. ':paused')
    end
  end
  waiting_grew = call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
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
  waiting_grew = call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
end
set_markers()
return call('HMGET', meta_key, 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'jmfeed')
