-- depths: how many jobs many queues of one slot have in each list and sorted set. ask: queues [what their keys begin with].
-- Returns: for each queue, whether it exists; the numbers, in the order of read.py, or the first one where the others are 0;
--   of jobs of which one has been due longest: the due time, or {id, score in delayed or '', fields}; and when the rate limit
--   allows the next claim, or -1.
--- include short_request

local TWO_32 = 4294967296
-- A queue with more priorities than this is rare: the first of them must do.
local MAX_PRIORITIES = 100
local LAST_DUE = string.format('%.0f', (now + 1) * 4096 - 1)
local OF_DUE_TIME = {'timestamp', 'jm', 'jmd', 'jms', 'rjk', 'jmu', 'processedOn'}

-- Most queues have jobs in few places: see lengths.lua.
local function counts_of()
  local wait = call('LLEN', Q .. ':wait')
  if call('EXISTS', Q .. ':delayed', Q .. ':completed', Q .. ':failed', Q .. ':active', Q .. ':prioritized', Q .. ':paused',
    Q .. ':waiting-children') == 0 then
    return {wait}
  end
  return {
    wait, call('LLEN', Q .. ':paused'), call('ZCARD', Q .. ':prioritized'), call('ZCOUNT', Q .. ':delayed', '-inf', LAST_DUE),
    call('ZCARD', Q .. ':delayed'), call('ZCARD', Q .. ':waiting-children'), call('LLEN', Q .. ':active'),
    call('ZCARD', Q .. ':completed'), call('ZCARD', Q .. ':failed'), call('ZCARD', Q .. ':jobmill:cancelled'),
  }
end

-- The due time of a job, or the values from which codec.py computes it; nil if the job has no hash.
local function due_of(id, score)
  local h = redis.pcall('HMGET', job_key(id), unpack(OF_DUE_TIME))
  if h.err or not h[1] then
    return nil
  end
  if h[2] and not (h[3] or h[4] or h[5] or score ~= '') then
    return tonumber(h[1])
  end
  local flat = {}
  for i, name in ipairs(OF_DUE_TIME) do
    if h[i] then
      flat[#flat + 1], flat[#flat + 2] = name, h[i]
    end
  end
  if not h[2] then
    flat[#flat + 1], flat[#flat + 2] = 'opts', call('HGET', job_key(id), 'opts') or '{}'
  end
  return {id, score, flat}
end

-- The first of each list, of each priority, and of delayed: jobs of one list or priority wait in order.
local function longest_due(counts)
  local found = {}
  local function add(id, score)
    found[#found + 1] = id and due_of(id, score) or nil
  end
  add(counts[1] > 0 and call('LINDEX', Q .. ':wait', -1), '')
  if not counts[2] then
    return found
  end
  add(counts[2] > 0 and call('LINDEX', Q .. ':paused', -1), '')
  local from = '-inf'
  for _ = 1, counts[3] > 0 and MAX_PRIORITIES or 0 do
    local first = call('ZRANGEBYSCORE', Q .. ':prioritized', from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[1] then
      break
    end
    add(first[1], '')
    from = string.format('%.0f', (math.floor(tonumber(first[2]) / TWO_32) + 1) * TWO_32)
  end
  if counts[4] > 0 then
    local first = call('ZRANGE', Q .. ':delayed', 0, 0, 'WITHSCORES')
    add(first[1], first[2])
  end
  return found
end

-- When the rate limit allows the next claim; -1 where it allows one now. As room_in_window() in claim.lua.
local function limited_until()
  local max = tonumber(call('HGET', Q .. ':meta', 'max'))
  if not max or (tonumber(call('GET', Q .. ':limiter')) or 0) < max then
    return -1
  end
  local ends, left = tonumber(call('GET', Q .. ':jobmill:window')), call('PTTL', Q .. ':limiter')
  if not ends or (not ask.linger and left > ends - now + 2000) then
    ends = now + left
  end
  return left > 0 and ends > now and ends or -1
end

local replies = {}
for i, queue in ipairs(ask.queues) do
  Q = queue
  local counts = counts_of()
  local exists = counts[2] or counts[1] > 0 or call('EXISTS', Q .. ':meta') == 1
  replies[i] = {exists and 1 or 0, counts, longest_due(counts), limited_until()}
end
return replies
