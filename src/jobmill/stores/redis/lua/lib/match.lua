-- Whether a job matches a filter, as far as a few of its fields say: most jobs of a search are not read whole.
-- ask.match: name, prefix (of the name), lane, recurring, errored, tenant and error (as they stand in JSON), fields: texts that
-- the payload must have, created and due {first, end: not included; '' for none}. ask.key: see unique_key.lua.
--- include unique_key

local M = ask.match or {}
local IS_DUE = {wait = true, paused = true, prioritized = true}
local FIELDS, TESTS = {}, {}

-- A test returns whether a job may match and, where it may, whether it does for sure.
local function test_of(field, test)
  FIELDS[#FIELDS + 1] = field
  TESTS[#TESTS + 1] = test
end

local function within(range, ms)
  return (range[1] == '' or range[1] <= ms) and (range[2] == '' or ms < range[2])
end

local function has(text)
  return function(value)
    return value and string.find(value, text, 1, true) ~= nil, false
  end
end

if M.name then
  test_of('name', function(name)
    return (name or '') == M.name, true
  end)
end
if M.prefix then
  test_of('name', function(name)
    return string.sub(name or '', 1, #M.prefix) == M.prefix, true
  end)
end
if M.lane then
  test_of('jmz', function(lane)
    return lane == M.lane, true
  end)
end
if M.tenant then
  test_of('jmo', has(M.tenant))
end
if M.error then
  test_of('jma', has(M.error))
end
if M.created then
  test_of('timestamp', function(value)
    local ms = tonumber(value or nil)
    return not ms or within(M.created, ms), ms ~= nil
  end)
end
if M.fields then
  test_of('data', function(data)
    if not data then
      return false
    end
    for _, text in ipairs(M.fields) do
      if not string.find(data, text, 1, true) then
        -- JSON has other forms of the same text and number: \u0061, 1e3.
        return string.find(data, '\\', 1, true) ~= nil or string.find(data, '%d[eE]') ~= nil, false
      end
    end
    return true, false
  end)
end

-- The due time of a job that waits and is not delayed. Scores decide about delayed jobs.
local function due_matches(id, source)
  if source == 'delayed' or (IS_DUE[source] and M.due[1] == '' and now < M.due[2]) then
    return true, true
  elseif not IS_DUE[source] then
    return true, false
  end
  local h = redis.pcall('HMGET', job_key(id), 'timestamp', 'jm', 'jmd', 'jms', 'rjk')
  local ms = not h.err and h[2] and not (h[3] or h[4] or h[5]) and tonumber(h[1] or nil)
  if not ms then
    return true, false
  end
  return within(M.due, ms), true
end

-- Our own count of errors or, without one, BullMQ's count of attempts, the last of which may have succeeded.
local function errored_matches(id, source)
  local h = redis.pcall('HMGET', job_key(id), 'jme', 'atm')
  local text = not h.err and (h[1] or h[2] or '0')
  if not text or not string.find(text, '^%d+$') then
    return true, false
  end
  local errors = tonumber(text) - ((not h[1] and source == 'completed') and 1 or 0)
  return (errors > 0) == M.errored, true
end

local MORE = {}
if M.errored ~= nil then
  MORE[#MORE + 1] = errored_matches
end
if M.due then
  MORE[#MORE + 1] = due_matches
end

local function match(id, source)
  local surely = not ask.key
  if M.recurring ~= nil then
    local is_run = string.sub(id, 1, 7) == 'repeat:'
    if M.recurring and not is_run then
      return false
    end
    surely = surely and not is_run
  end
  if not may_match(id) then
    return false
  end
  for i, field in ipairs(FIELDS) do
    local value = redis.pcall('HGET', job_key(id), field)
    local may, is_sure = TESTS[i](type(value) == 'string' and value)
    if not may then
      return false
    end
    surely = surely and is_sure
  end
  for _, matches in ipairs(MORE) do
    local may, is_sure = matches(id, source)
    if not may then
      return false
    end
    surely = surely and is_sure
  end
  return true, surely
end
