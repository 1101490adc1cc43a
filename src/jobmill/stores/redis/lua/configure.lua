-- configure: pause, limits and feed of a queue. ask: set {field: value}, clear [field], paused or nil.
-- Returns: paused, concurrency, max, duration, opts.maxLenEvents, jmfeed, as they are now.
--- include request
--- include events
--- include waiting
--- include repair
--- include state

local meta = Q .. ':meta'
-- A queue can be paused when memory is used up: see lease.lua.
call('DEL', Q .. ':jobmill:nothing')
-- As BullMQ 5 does it: the waiting jobs move to a list of their own, and back.
local function move_list(from, to)
  if ask.v5 and call('EXISTS', from) == 1 then
    if call('EXISTS', to) == 0 then
      call('RENAME', from, to)
    else
      -- A plain rename would lose what is there: behind it in line, as it came in later.
      local ids = call('LRANGE', from, 0, -1)
      for i = #ids, 1, -1 do
        call('LPUSH', to, ids[i])
      end
      call('DEL', from)
    end
  end
end

if ask.paused == true then
  call('HSET', meta, 'paused', 1)
  call('DEL', Q .. ':marker')
  if not paused then
    move_list(Q .. ':wait', Q .. ':paused')
  end
  event('paused')
elseif ask.paused == false then
  call('HDEL', meta, 'paused')
  paused = false
  -- What version 5 left there goes to the front, in its own order.
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
  line_grew = call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
  delayed_changed = not line_grew
  event('resumed')
end
for field, value in pairs(ask.set) do
  call('HSET', meta, field, value)
end
if #ask.clear > 0 then
  call('HDEL', meta, unpack(ask.clear))
end
if ask.wakes then
  -- A limit went up: whoever sleeps may have room now.
  concurrency = tonumber(call('HGET', meta, 'concurrency'))
  line_grew = call('LLEN', Q .. ':wait') + call('ZCARD', Q .. ':prioritized') > 0
end
set_markers()
return call('HMGET', meta, 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'jmfeed')
