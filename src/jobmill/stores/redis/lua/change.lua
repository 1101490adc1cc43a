-- change: cancel, requeue, reschedule, reprioritize, remove or seize jobs without a lease.
-- ask: verb, ids, from {state: true}; due [ms per id], priority, token, worker, worker_json, lease_ms as the verb needs.
-- Returns: per id, "done" or why not.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include schedulers
--- include flows
--- include retention
--- include lease
--- include job_id

local function attempt_of(h)
  return (tonumber(h.jme or h.atm) or 0) + 1
end

local FIELDS = {'name', 'atm', 'jme', 'deid', 'parentKey', 'parent', 'rjk', 'priority', 'jm', 'jmo', 'opts', 'ats'}

local function look(id)
  local values = call('HMGET', job_key(id), unpack(FIELDS))
  local h = {}
  for i, field in ipairs(FIELDS) do
    h[field] = values[i] or nil
  end
  return h
end

-- A recurring job that is cancelled or removed comes no more.
local function end_recurrence(id, h)
  if h.rjk and id == 'repeat:' .. h.rjk .. ':' .. (call('ZSCORE', Q .. ':repeat', h.rjk) or '') then
    end_scheduler(h.rjk)
  end
end

local function forget_retention(id)
  call('ZREM', Q .. ':jobmill:cancelled', id)
  call('ZREM', Q .. ':jobmill:expiry', id)
  call('ZREM', Q .. ':jobmill:last', id)
end

local verbs = {}

function verbs.cancel(id, h, place)
  local key = job_key(id)
  take_out(id, place)
  call('DEL', key .. ':lock')
  call('SREM', Q .. ':stalled', id)
  end_recurrence(id, h)
  if h.deid then
    free_deduplication(id, h.deid)
  end
  if h.parentKey then
    child_failed(id, h.parentKey, h.parent, 'cancelled')
  end
  event('failed', 'jobId', id, 'failedReason', 'cancelled', 'prev', place == 'wait' and 'waiting' or place)
  tell('cancelled', id, h.name, attempt_of(h))
  line_grew = line_grew or place == 'active'
  local said = (decoded(h.jmo).o or {}).keep_failed
  local keep = said and {last = said.last, age = said.age_ms} or (h.jm and {age = DEFAULT_AGES.failed} or {})
  if keep.last == 0 or keep.age == 0 then
    tell('removed', id, h.name, attempt_of(h))
    delete_keys(id)
    return
  end
  call('HSET', key, 'failedReason', 'cancelled', 'finishedOn', now)
  call('HDEL', key, 'defa', 'jmu')
  call('ZADD', Q .. ':failed', now, id)
  call('ZADD', Q .. ':jobmill:cancelled', now, id)
  keep_own(id, keep, 'failed')
end

-- A recurring job that was ended comes again: its scheduler is made of what its last run says.
local function begin_scheduler_again(id, h)
  local record = Q .. ':repeat:' .. h.rjk
  local opts = decoded(h.opts)
  local rule = type(opts['repeat']) == 'table' and opts['repeat'] or {}
  local said = call('HMGET', job_key(id), 'data', 'jmr', 'jmo')
  call('DEL', record)
  call('HSET', record, 'name', h.name, 'ic', rule.count or 1, 'offset', 0, 'data', said[1], 'jmr', said[2] or '{}')
  for _, field in ipairs({'pattern', 'tz', 'every', 'endDate', 'limit'}) do
    if rule[field] then
      call('HSET', record, field, rule[field])
    end
  end
  if said[3] then
    call('HSET', record, 'jmo', said[3])
  end
  call('ZADD', Q .. ':repeat', string.match(id, '[^:]*$'), h.rjk)
  call('HSET', Q .. ':jobmill:recurring', h.rjk, string.match(id, '[^:]*$'))
end

function verbs.requeue(id, h, place, i)
  local key = job_key(id)
  local owner = h.deid and call('GET', Q .. ':de:' .. h.deid)
  if owner and owner ~= id and call('EXISTS', job_key(owner)) == 1 then
    return 'the live job ' .. owner .. ' has its unique key'
  end
  -- A recurring job has the same key as its scheduler: see ids.py.
  local sid = h.rjk or (h.deid and string.gsub(string.gsub(h.deid, '%%', '%%25'), ':', '%%3A'))
  local live = sid and live_run(sid)
  if live then
    return 'the live job ' .. live .. ' has its key'
  end
  if h.deid and owner ~= id then
    call('SET', Q .. ':de:' .. h.deid, id)
  end
  if h.rjk and h.jm then
    begin_scheduler_again(id, h)
  end
  take_out(id, place)
  forget_retention(id)
  call('HDEL', key, 'finishedOn', 'processedOn', 'failedReason', 'returnvalue', 'atm', 'stc', 'jme', 'progress', 'defa')
  local due = ask.due[i]
  call('HSET', key, 'jmd', due, 'jmu', now)
  if h.parentKey then
    child_back(id, h.parentKey)
  end
  if due > now then
    call('HSET', key, 'delay', due - now)
    to_delayed(id, due)
    event('delayed', 'jobId', id, 'delay', due)
  else
    to_line(id, tonumber(h.priority) or 0, decoded(h.opts).lifo)
    event('waiting', 'jobId', id, 'prev', place)
  end
  tell('enqueued', id, h.name, 1)
end

function verbs.reschedule(id, h, place, i)
  if place == 'waiting-children' then
    return 'the job waits for its children'
  end
  local due = ask.due[i]
  take_out(id, place)
  call('HSET', job_key(id), 'delay', math.max(0, due - now), 'jmd', due, 'jmu', now)
  if due > now then
    to_delayed(id, due)
    event('delayed', 'jobId', id, 'delay', due)
  else
    to_line(id, tonumber(h.priority) or 0)
    event('waiting', 'jobId', id, 'prev', place == 'wait' and 'waiting' or place)
  end
  delayed_changed = true
end

function verbs.reprioritize(id, h, place)
  call('HSET', job_key(id), 'priority', ask.priority, 'jmu', now)
  if place == 'wait' or place == 'prioritized' then
    take_out(id, place)
    to_line(id, ask.priority)
  end
end

-- The children of a flow's parent, whatever became of them: their keys.
local function children_of(id)
  local key = job_key(id)
  local found = call('HKEYS', key .. ':processed')
  for _, more in ipairs({call('SMEMBERS', key .. ':dependencies'), call('HKEYS', key .. ':failed'),
    call('ZRANGE', key .. ':unsuccessful', 0, -1)}) do
    for _, child in ipairs(more) do
      found[#found + 1] = child
    end
  end
  return found
end

-- Does something with a job that may be in another queue: all keys are made from Q.
local function elsewhere(key, act)
  local here, P, id = Q, split_key(key)
  Q = P
  local answer = act(id)
  Q = here
  return answer
end

local has_running_child
function has_running_child(id)
  for _, child in ipairs(children_of(id)) do
    if call('EXISTS', child .. ':lock') == 1 or elsewhere(child, has_running_child) then
      return true
    end
  end
  return false
end

function verbs.remove(id, h, place)
  if has_running_child(id) then
    return 'a child of the job is running'
  end
  local children, _ = children_of(id), nil
  for _, child in ipairs(children) do
    elsewhere(child, function(its_id)
      local state, its_place = state_of(its_id)
      if state then
        verbs.remove(its_id, look(its_id), its_place)
      end
    end)
  end
  if #children > 0 then
    _, place = state_of(id)  -- it waited for the last of them
  end
  take_out(id, place)
  forget_retention(id)
  end_recurrence(id, h)
  if h.deid and call('GET', Q .. ':de:' .. h.deid) == id then
    call('DEL', Q .. ':de:' .. h.deid, Q .. ':dn:' .. h.deid)
  end
  if h.parentKey then
    child_gone(id, h.parentKey)
  end
  if h.rjk and call('HGET', Q .. ':jobmill:recurring', h.rjk) == string.match(id, '[^:]*$') then
    call('HDEL', Q .. ':jobmill:recurring', h.rjk)
  end
  tell('removed', id, h.name, attempt_of(h))
  delete_keys(id)
  event('removed', 'jobId', id, 'prev', place)
end

function verbs.seize(id, h, place)
  if place == 'delayed' then
    -- The place tells when it is due, and it leaves it.
    call('HSETNX', job_key(id), 'jmd', math.floor(tonumber(call('ZSCORE', Q .. ':delayed', id)) / 4096))
  end
  if place ~= 'active' then
    take_out(id, place)
    call('LPUSH', Q .. ':active', id)
  end
  call('SREM', Q .. ':stalled', id)
  call('HSET', job_key(id), 'processedOn', now, 'pb', ask.worker, 'ats', (tonumber(h.ats) or 0) + 1, 'delay', 0)
  lock(id, ask.token, ask.lease_ms)
  event('active', 'jobId', id, 'prev', 'waiting')
  tell('claimed', id, h.name, attempt_of(h), ask.worker_json)
end

-- "done" or why not: an error must neither stop the others nor leave the job nowhere.
local function change_one(id, place, i)
  local fine, answer = pcall(function()
    return verbs[ask.verb](id, look(id), place, i)
  end)
  if fine then
    return answer or 'done'
  end
  local _, now_at = state_of(id)
  if now_at == 'wait' and not call('LPOS', Q .. ':wait', id) and not call('LPOS', Q .. ':paused', id) then
    call('RPUSH', wait_key(), id)
  end
  return type(answer) == 'table' and answer.err or tostring(answer)
end

-- Makes room, and so must not be refused where there is none: see lease.lua.
call('DEL', NOTHING)
trim_events()
local answers = {}
for i, said_id in ipairs(ask.ids) do
  local id = resolve(said_id)
  local state, place = state_of(id)
  if not state then
    answers[i] = 'there is no such job'
  elseif not ask.from[state] then
    answers[i] = 'the job is ' .. state
  else
    mend(id)
    answers[i] = change_one(id, place, i)
  end
end
set_markers()
return answers
