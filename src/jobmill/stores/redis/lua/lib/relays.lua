--- include relay_queue
-- Relays: see flows.lua. A relay is in BullMQ's words the parent of one job, so that Node tells it how that job ended.
-- Then it is in the list <relays>:wait, and relay.lua tells the dependents. We tell them at once when we settle the job.
-- Fields of its hash: child, number (of dependents so far), told (the score up to which dependents were told).
-- The score of a dependent is its number * 8 + the strength of its policy.
local STRENGTHS = {rdof = 1, idof = 2, none = 3, cpof = 4, fpof = 5}
local BY_STRENGTH = {'rdof', 'idof', 'none', 'cpof', 'fpof'}
-- How many dependents a call may tell: see MAX_RELEASED in core/flows.py.
local may_tell = ask.max_told

local function is_relay(key)
  return string.find(key, '^jobmill:.*:relays:') ~= nil
end

-- The queue and the id of a job's relay.
local function relay_of(child)
  local id = string.gsub(string.gsub(child, '%%', '%%25'), ':', '%%3A')
  return relays(string.match(child, '^(.*):[^:]*$')), id
end

local function delete_relay(queue, id)
  local key = queue .. ':' .. id
  call('ZREM', queue .. ':waiting-children', id)
  call('LREM', queue .. ':wait', 0, id)
  call('DEL', key, key .. ':dependencies', key .. ':processed', key .. ':failed', key .. ':next')
end

-- The job of a relay is removed. A relay that still has dependents to tell stays until it has told them.
local function end_relay(relay)
  local queue, id = string.match(relay, '^(.*):([^:]*)$')
  if not call('LPOS', queue .. ':wait', id) then
    delete_relay(queue, id)
  end
end

-- Tells dependents from where the last call ended. How many were told, and whether there are more.
local function tell_relayed(relay, child, ended)
  local told = call('HGET', relay, 'told')
  local found = call('ZRANGEBYSCORE', relay .. ':next', told and '(' .. told or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0,
    may_tell + 1)
  local count = 0
  for i = 1, #found, 2 do
    if may_tell == 0 then
      call('HSET', relay, 'told', found[i - 1] or told or '-inf')
      return count, true
    end
    may_tell = may_tell - 1
    count = count + tell(child, found[i], BY_STRENGTH[tonumber(found[i + 1]) % 8], ended)
  end
  call('HDEL', relay, 'told')
  return count, false
end

-- The job of a relay has ended. Whether dependents are left for flush_outbox.
local function begin_relay(relay, child, ended)
  local queue, id = string.match(relay, '^(.*):([^:]*)$')
  call('SREM', relay .. ':dependencies', child)
  local was_waiting = call('ZREM', queue .. ':waiting-children', id) == 1
  if not was_waiting then
    return false
  end
  local _, more = tell_relayed(relay, child, ended)
  if more then
    if ended.reason then
      call('HSET', relay .. ':failed', child, ended.reason)
      call('HSET', relay, 'line', ended.line, 'cancelled', ended.cancelled and 1 or 0)
    elseif ended.value then
      call('HSET', relay .. ':processed', child, ended.value)
    end
    call('LPUSH', queue .. ':wait', id)
  end
  return more
end

-- The relay's job is live again, or was when the relay was made.
local function arm_relay(relay, child)
  local queue, id = string.match(relay, '^(.*):([^:]*)$')
  call('LREM', queue .. ':wait', 0, id)
  call('DEL', relay .. ':processed', relay .. ':failed')
  call('HDEL', relay, 'told', 'line', 'cancelled')
  call('SADD', relay .. ':dependencies', child)
  call('ZADD', queue .. ':waiting-children', now, id)
end

-- What BullMQ stores of a job's parent, beside its key.
local function parent_json(parent_key, policy)
  local queue, id = string.match(parent_key, '^(.*):([^:]*)$')
  local flag = policy ~= 'none' and ',"' .. policy .. '":true' or ''
  return '{"id":' .. cjson.encode(id) .. ',"queueKey":' .. cjson.encode(queue) .. flag .. '}'
end

local function add_to_relay(relay, dependent, policy)
  local next, strength = relay .. ':next', STRENGTHS[policy]
  local score = tonumber(call('ZSCORE', next, dependent))
  if not score then
    call('ZADD', next, call('HINCRBY', relay, 'number', 1) * 8 + strength, dependent)
  elseif score % 8 < strength then
    call('ZADD', next, score - score % 8 + strength, dependent)
  end
end
