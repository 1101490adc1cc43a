-- flow: enqueues jobs of one slot that wait for each other, and suspends a run that waits for them. Up to 250 jobs are one step.
-- A larger flow is several calls: its jobs are staged first, so that no worker finds them; `commit` makes the flow
-- valid; then edges are set, and the jobs are freed. flush_outbox finishes or undoes what a process has left.
-- ask, each where the call does it, in this order:
--   known [[key, id]]: jobs in the store that others wait for; in_call [position]: those of this call; both are checked.
--   children [[what the keys of its queue begin with, id, deduplication id or nil, [key that it waits for]]] and waits [key]: what a
--   suspended job is to wait for. None of that may wait for the job itself.
--   suspend: a settlement, see settle.py. jobs [[what the keys of its queue begin with, job as in enqueue.lua, whether it waits]].
--   append: edges (JSON) that the suspended job gets, where its children are staged.
--   staging {key: a list of staged jobs, index: a sorted set of these lists, commit: true, ended: true}
--   edges [[position or key of a dependent, [[position or key of a dependency, policy]], whether jmg is to be written]].
--   records [[key, jmg]]: edges are recorded. free [key]. abort [key]: staged jobs that are removed. texts: see flows.lua.
-- Returns: {"unknown", id}, {"recurring", id}, {"circular"}, {"lost"}, {"refused", why}, or {"done", receipts: see enqueue.lua, how many of
--   `free` and `edges` were staged, has_outbox, the ids in the port of jobs that were cancelled: see policy.lua}.
--- include request
--- include events
--- include lease
--- include job_id
--- include waiting
--- include repair
--- include state
--- include add
--- include schedulers
--- include flows
--- include retention
--- include settle
--- include enqueue
--- include policy
--- include edges
--- include staged

local jobs, staging = ask.jobs or {}, ask.staging

-- 1. Nothing is written where a job waits for one that cannot end, or is not there.
for _, one in ipairs(ask.known or {}) do
  local h = redis.pcall('HMGET', one[1], 'name', 'rjk')
  if h.err or not h[1] then
    return {'unknown', one[2]}
  elseif h[2] then
    return {'recurring', one[2]}
  end
end
for _, position in ipairs(ask.in_call or {}) do
  local special = jobs[position][2][9]
  local live = special and special.sid and in_queue(jobs[position][1], live_run, special.sid)
  if live then
    return {'recurring', jobs[position][2][1]}
  end
end
-- Whether one of these jobs waits for the suspended job, also through others.
local function is_circular(own, left)
  local seen = {}
  while #left > 0 do
    local key = table.remove(left)
    if key == own then
      return true
    end
    for _, other in ipairs(not seen[key] and call('SMEMBERS', key .. ':dependencies') or {}) do
      left[#left + 1] = other
    end
    seen[key] = true
  end
  return false
end

if ask.children then
  local left = ask.waits
  for _, child in ipairs(ask.children) do
    local key = child[1] .. ':' .. child[2]
    local owner = child[3] and call('GET', child[1] .. ':de:' .. child[3])
    if call('EXISTS', key) == 0 then
      key = owner and child[1] .. ':' .. owner
    end
    for _, start in ipairs(key and {key} or child[4]) do
      left[#left + 1] = start
    end
  end
  if is_circular(job_key(resolve(ask.own)), left) then
    return {'circular', ''}
  end
end
call('DEL', NOTHING)
if staging and staging.commit and not call('ZSCORE', staging.index, staging.key) then
  return {'refused', 'the flow took too long to enqueue, and was removed'}
end
if ask.suspend then
  local answer = settle(ask.suspend)
  if answer ~= 'done' then
    return {answer == 'lost' and 'lost' or 'refused', answer}
  end
  if ask.append then
    local key = job_key(resolve(ask.suspend.id))
    local old = call('HGET', key, 'jmg')
    call('HSET', key, 'jmg', old and string.sub(old, 1, -2) .. ',' .. string.sub(ask.append, 2) or ask.append)
    call('RPUSH', staging.key, key)
  end
end

-- 2. The jobs. One that waits for others, or is part of a larger flow, is staged.
local keys, queues, receipts = {}, {}, {}
local trimmed = {}

local function enqueue_held(job, waits)
  if not trimmed[Q] then
    trimmed[Q] = true
    call('HSETNX', Q .. ':meta', 'opts.maxLenEvents', max_events)
    trim_events()
  end
  -- A job with a policy is not staged: it may have cancelled another one, which nobody can undo.
  local held = waits or (staging and not (job[9] and job[9].taken))
  local how, id = enqueue(job, call('INCR', Q .. ':id'), held)
  if how == 'created' and held then
    local key = job_key(id)
    call('SADD', key .. ':dependencies', stage())
    local lane = lane_of(id)
    if not waits then
      -- It is held only until the flow is complete.
      local by = lane and '["lane"]' or '[]'
      call('HSET', key, 'jmh', string.format('{"by":%s,"due":{"at_ms":%.0f}}', by, job[5] > 0 and job[6] or now))
    end
    hold_children(id)
    if lane then
      call('SADD', key .. ':dependencies', latch())
      lanes.hold(id, lane)
    end
    if staging then
      call('RPUSH', staging.key, key)
    end
  end
  return {how, id, is_ours(how, id)}
end

for i, one in ipairs(jobs) do
  receipts[i] = in_queue(one[1], enqueue_held, one[2], one[3])
  keys[i] = one[1] .. ':' .. receipts[i][2]
end
if staging and staging.commit then
  call('ZADD', staging.index, 'XX', -now, staging.key)
elseif staging and staging.ended then
  call('ZREM', staging.index, staging.key)
  call('DEL', staging.key)
elseif staging and #jobs > 0 then
  call('ZADD', staging.index, now, staging.key)
end

-- 3. Edges. A job that was there already gets none.
local function is_staged_key(key)
  local queue = string.match(key, '^(.*):[^:]*$')
  return call('SISMEMBER', key .. ':dependencies', queue .. ':jobmill:staged') == 1
end

local function write_edges(dependent, edges)
  local old = call('HGET', dependent, 'jmg')
  local record = old and decoded(old) or {}
  for _, edge in ipairs(edges) do
    local child = keys[edge[1]] or edge[1]
    local queue, id = string.match(child, '([^:]*):([^:]*)$')
    record[#record + 1] = {queue, id, edge[2], redis.pcall('HEXISTS', child, 'jm')}
  end
  call('HSET', dependent, 'jmg', cjson.encode(record))
end

-- Another process may have set an edge of a committed flow already.
local function is_set(child, dependent)
  return call('SISMEMBER', dependent .. ':dependencies', child) == 1 or call('HEXISTS', dependent .. ':processed', child) == 1
    or call('HEXISTS', dependent, 'jmb:' .. child) == 1
end

for _, one in ipairs(ask.records or {}) do
  if is_staged_key(one[1]) then
    call('HSET', one[1], 'jmg', one[2])
  end
end
local staged, free_keys = 0, ask.free or {}
for _, one in ipairs(ask.edges or {}) do
  local dependent = keys[one[1]] or one[1]
  local is_new = type(one[1]) ~= 'number' or receipts[one[1]][1] == 'created'
  if is_new and is_staged_key(dependent) then
    staged = staged + 1
    if one[3] then
      write_edges(dependent, one[2])
      free_keys[#free_keys + 1] = dependent
    end
    for _, edge in ipairs(one[2]) do
      local child = keys[edge[1]] or edge[1]
      if one[3] or not is_set(child, dependent) then
        link(child, dependent, edge[2])
        set_edge(child, dependent, edge[2])
      end
    end
  end
end

-- 4. The flow is complete: what need not wait may run.
for _, key in ipairs(free_keys) do
  staged = staged + elsewhere(key, free_staged)
end

-- A flow that was not enqueued completely is removed.
local function remove_staged(id)
  local key = job_key(id)
  if is_staged(id) then
    local h = call('HMGET', key, 'deid', 'jmy', 'name')
    call('ZREM', Q .. ':waiting-children', id)
    drop_deduplication(id, h[1])
    feed_event('removed', id, h[3], 1)
    delete_keys(id, h[2])
    event('removed', 'jobId', id, 'prev', 'waiting-children')
  end
end

for _, key in ipairs(ask.abort or {}) do
  elsewhere(key, remove_staged)
end
set_markers()
return {'done', receipts, staged, has_outbox and 1 or 0, cancelled}
