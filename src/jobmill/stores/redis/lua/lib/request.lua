-- The queue, the request and the queue's settings. No functions: making one costs 0.4 us in every call.
-- KEYS[1]: <prefix>:<queue>, of which all other keys are made. ARGV[1]: the request, in msgpack; `now` in ms is always in it.
local call = redis.call
local Q = KEYS[1]
local ask = cmsgpack.unpack(ARGV[1])
local now = ask.now
-- Numbers become text at every call: this one once.
local now_text = string.format('%.0f', now)

local said = call('HMGET', Q .. ':meta', 'paused', 'concurrency', 'max', 'duration', 'opts.maxLenEvents', 'jmfeed')
local paused = said[1] ~= false
local concurrency = tonumber(said[2])
local max_events = tonumber(said[5])
if not max_events then
  max_events = 10000
  -- Not for verbs about jobs that may not be there: a wrong word would make a queue.
  if ask.jobs or ask.settle or ask.set or ask.sid then
    call('HSET', Q .. ':meta', 'opts.maxLenEvents', max_events)
  end
end
local feed_on = said[6] ~= false
