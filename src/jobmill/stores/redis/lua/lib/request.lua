-- The queue, the request and the queue's settings. No functions: making one costs 0.4 us in every call.
-- KEYS[1]: <prefix>:<queue>, with which all other keys begin. ARGV[1]: the request, in msgpack. Always in it: now (ms) and
-- max_events (the default length of the event stream) and max_told (see relays.lua). Where it applies: v5 (the layout of BullMQ 5), linger (see lease.lua).
local call = redis.call
local Q = KEYS[1]
local ask = cmsgpack.unpack(ARGV[1])
local now = ask.now
-- A number becomes text at every call that takes it: this one only once.
local now_text = string.format('%.0f', now)

local meta = call('HMGET', Q .. ':meta', 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'jmfeed', 'version',
  'jmpause', 'jmlanes')
-- BullMQ 5 loses what is added to `wait` while a queue is paused. What runs already is settled.
if meta[7] and not ask.v5 and string.sub(meta[7], 1, 9) == 'bullmq:5.'
  and not (ask.settle and #ask.plain + #ask.settle > 0) and not ask.reads then
  return redis.error_reply('BULLMQ5 ' .. meta[7] .. ' works ' .. Q)
end
local paused = meta[1] ~= false
local concurrency = tonumber(meta[2])
-- When a pause ends by itself; nil for never.
local resumes = nil
if not meta[8] or ask.reads then
  -- Nothing is to be changed.
elseif not paused then
  call('HDEL', Q .. ':meta', 'jmpause')  -- Node has ended this pause: it does not describe the next one
else
  resumes = tonumber(string.match(meta[8], '"until_ms":(%d+)'))
  if resumes and resumes <= now then
--- include resume
    resume()
    call('ZADD', Q .. ':marker', 0, '0')
    resumes = nil
  end
end
local max_events = tonumber(meta[5])
if not max_events then
  max_events = ask.max_events
  -- Only verbs that write jobs or settings: others would make a queue of a mistyped name.
  if ask.jobs or ask.settle or ask.set or ask.sid then
    call('HSET', Q .. ':meta', 'opts.maxLenEvents', max_events)
  end
end
local feed_on = meta[6] ~= false
-- The rule for the lanes of the queue in JSON, or "" for none; false or nil where the queue has no lanes. See lanes.lua.
local lanes_rule = meta[9] or (ask.lanes and '')
local lanes
