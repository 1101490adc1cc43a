-- lengths: of lists and sorted sets of many queues of one slot. ask: queues [what their keys begin with], lists [name], sets
-- [name], key: a unique key, or nil; scores: see scores.lua. Returns: for each queue, the lengths of lists and sets, or of
-- their ranges; only the first of them, or none, where the others are 0, or where it is easily seen that no job has the key.
--- include short_request
--- include unique_key
--- include scores

local LENGTH, RANGE, NAMES = {}, {}, {}
for _, name in ipairs(ask.lists) do
  NAMES[#NAMES + 1] = name
  LENGTH[#NAMES], RANGE[#NAMES] = 'LLEN', 'LRANGE'
end
for _, name in ipairs(ask.sets) do
  NAMES[#NAMES + 1] = name
  LENGTH[#NAMES], RANGE[#NAMES] = 'ZCARD', 'ZRANGE'
end
-- With more jobs, the pages find it.
local MAX_READ = 20

local function length_of(i)
  local low, high = bounds(NAMES[i])
  if low then
    return call('ZCOUNT', Q .. ':' .. NAMES[i], low, high)
  end
  return call(LENGTH[i], Q .. ':' .. NAMES[i])
end

-- Most queues have jobs in few places. Measured with 20,000 queues: half of the time.
local function lengths_of()
  local lengths = {length_of(1)}
  local rest = {}
  for i = 2, #NAMES do
    rest[i - 1] = Q .. ':' .. NAMES[i]
  end
  if #rest > 0 and call('EXISTS', unpack(rest)) > 0 then
    for i = 2, #NAMES do
      lengths[i] = length_of(i)
    end
  end
  return lengths
end

local function has_no_match(lengths)
  if not ask.key or ask.scores then
    return false
  end
  local total = 0
  for _, length in ipairs(lengths) do
    total = total + length
  end
  if total > MAX_READ then
    return false
  end
  for i, length in ipairs(lengths) do
    for _, id in ipairs(length > 0 and call(RANGE[i], Q .. ':' .. NAMES[i], 0, -1) or {}) do
      if may_match(id) then
        return false
      end
    end
  end
  return true
end

local replies = {}
for i, queue in ipairs(ask.queues) do
  Q = queue
  local lengths = lengths_of()
  replies[i] = has_no_match(lengths) and {} or lengths
end
return replies
