-- lengths: of lists and sorted sets of many queues of one slot. ask: queues [what their keys begin with], lists [name], sets
-- [name], key: a unique key, or nil. Returns: for each queue, the lengths of lists and sets; only the first of them, or none,
--   where the others are 0, or where it is easily seen that no job has the key.
--- include short_request
--- include unique_key

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

-- Most queues have jobs in few places. Measured with 20,000 queues: half of the time.
local function lengths_of()
  local lengths = {call(LENGTH[1], Q .. ':' .. NAMES[1])}
  local rest = {}
  for i = 2, #NAMES do
    rest[i - 1] = Q .. ':' .. NAMES[i]
  end
  if #rest > 0 and call('EXISTS', unpack(rest)) > 0 then
    for i, key in ipairs(rest) do
      lengths[i + 1] = call(LENGTH[i + 1], key)
    end
  end
  return lengths
end

local function has_no_match(lengths)
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
  replies[i] = ask.key and has_no_match(lengths) and {} or lengths
end
return replies
