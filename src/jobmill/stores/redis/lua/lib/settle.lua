-- The decided end of a lease. s: see settle.py.
-- The fields of a job that every settlement reads.
local FIELDS_READ = {'name', 'atm', 'stc', 'jme', 'parentKey', 'deid', 'rjk', 'priority', 'jm', 'defa', 'jms', 'jmg', 'jmv', 'jmy',
  'jmd', 'timestamp'}
local NAME, ATM, STC, JME, PARENT, DEID, RJK, PRIORITY, JM, DEFA, JMS, JMG, JMV, JMY, JMD, TIMESTAMP =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
-- Whether jobs wait for a job that was settled and are left for flush_outbox.
local has_outbox = false
local has_stalled = call('EXISTS', Q .. ':stalled') == 1

local function append(fields, field, value)
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end

-- Writes fields and counts. BullMQ counts attempts that ended (atm); jme has the number of errors where it differs from
-- the one that follows from them.
local function write(key, h, s, fields, atm, errors)
  if atm > 0 then  -- BullMQ writes no zero
    append(fields, 'atm', atm)
  end
  if errors ~= s.errors then
    append(fields, 'jme', s.errors)
  elseif h[JME] then
    call('HDEL', key, 'jme')
  end
  if (tonumber(h[STC]) or 0) ~= s.crashes then
    append(fields, 'stc', s.crashes)
  end
  call('HSET', key, unpack(fields))
end

-- The last tracebacks, as many as the job's stackTraceLimit allows.
local function kept_tracebacks(key, tracebacks)
  local limit = tonumber(decoded(call('HGET', key, 'opts')).stackTraceLimit)
  local all = limit and cjson.decode(tracebacks)
  if not limit or #all <= limit then
    return tracebacks
  end
  return limit < 1 and '[]' or cjson.encode({unpack(all, #all - limit + 1)})
end

-- The fields of a failed attempt.
local function append_error(fields, s)
  append(fields, 'failedReason', s.error)
  if s.typed_error then
    append(fields, 'jmf', s.typed_error)
  end
end

-- The attempts that did not succeed: a crash is noted with the end of the next attempt, however that ends.
local function append_attempts(fields, key, s)
  if s.attempts then
    append(fields, 'jma', s.attempts)
    if s.tracebacks ~= '[]' then
      append(fields, 'stacktrace', kept_tracebacks(key, s.tracebacks))
    end
  end
end

local function whole(value)
  value = tonumber(value)
  return value and value >= 0 and value < 9007199254740992 and math.floor(value) or nil
end

-- BullMQ's removeOnComplete and removeOnFail, as {count, age, limit}; nil keeps for ever.
local function node_keep(opts, set)
  local keep = opts[set == 'completed' and 'removeOnComplete' or 'removeOnFail']
  if keep == true then
    return {count = 0}
  elseif type(keep) == 'number' then
    return {count = whole(keep)}
  elseif type(keep) == 'table' then
    return {count = whole(keep.count), age = whole(keep.age), limit = whole(keep.limit)}
  end
  return nil
end

local function finish(id, key, h, set, s, keep)
  if lanes_rule then
    lanes.gone(id)
  end
  local atm = (tonumber(h[ATM]) or 0) + 1
  local fields = {'finishedOn', now}
  append_attempts(fields, key, s)
  if set == 'completed' then
    append(fields, 'returnvalue', s.result)
  else
    append_error(fields, s)
  end
  local opts = (set == 'failed' or not h[JM]) and decoded(call('HGET', key, 'opts')) or nil
  if h[DEID] then
    free_deduplication(id, h[DEID])
  end
  if h[PARENT] then
    local ended = set == 'completed' and {value = s.result} or failure(s.error, s.typed_error)
    has_outbox = child_ended(id, h[PARENT], call('HGET', key, 'parent'), ended) or has_outbox
  end
  local node = not h[JM] and node_keep(opts, set) or nil
  local at_once = h[JM] and keep and (keep.last == 0 or keep.age == 0) or node and node.count == 0
  local stays = at_once and h[JM] and is_pinned(h[PARENT])
  at_once = at_once and not stays
  if at_once then
    delete_keys(id, h[JMY])
  else
    write(key, h, s, fields, atm, set == 'completed' and atm - 1 or atm)
    if h[DEFA] and set == 'failed' then
      call('HDEL', key, 'defa')
    end
    call('ZADD', Q .. ':' .. set, now, id)
  end
  if set == 'completed' then
    event('completed', 'jobId', id, 'returnvalue', s.result, 'prev', 'active')
  else
    event('failed', 'jobId', id, 'failedReason', s.error, 'prev', 'active')
    if atm >= (tonumber(opts.attempts) or 0) then
      event('retries-exhausted', 'jobId', id, 'attemptsMade', atm)
    end
  end
  if at_once then
    return
  elseif stays then
    keep_pinned(id)
  elseif h[JM] then
    keep_own(id, keep or {})
  elseif node then
    keep_as_node(set, node)
  end
end

-- Whether a job of ours must wait for jobs: it was seized, or those were requeued.
local function must_wait(key, h)
  return h[JMG] and not h[DEFA] and call('EXISTS', key .. ':dependencies') == 1 and call('EXISTS', key .. ':unsuccessful') == 0
    and not string.find(h[JMG], '"cpof"', 1, true)
end

local function wait_again(id, key, h, s)
  local errored = s.outcome == 'errored'
  local atm = (tonumber(h[ATM]) or 0) + (errored and 1 or 0)
  local fields = {'jmu', now}
  if s.outcome == 'released' and s.due and not h[JM] then
    -- Left to Node, which may claim it now. Our claims pass it over until then.
    append(fields, 'jmn', s.due)
    s.due = nil
  end
  local priority = tonumber(h[PRIORITY]) or 0
  append_attempts(fields, key, s)
  if errored then
    append_error(fields, s)
  end
  if s.waits_for then
    append(fields, 'jmv', s.waits_for)
    if call('HEXISTS', key, 'jmi:' .. s.waits_for) == 1 then
      s.due = now
    end
  elseif h[JMV] then
    call('HDEL', key, 'jmv')
  end
  local seized = tonumber(h[JMS])
  if seized then
    call('HDEL', key, 'jms')
  end
  if s.due or seized then
    append(fields, 'jmd', s.due or seized)
  end
  if seized and seized > now then
    -- A job that was seized before it was due waits for its due time again.
    s.due = s.due or seized
  end
  local is_delayed = s.due and s.due > now
  if is_delayed then
    append(fields, 'delay', s.due - now)
  end
  write(key, h, s, fields, atm, atm)
  if s.stages or must_wait(key, h) then
    if s.stages then
      call('SADD', key .. ':dependencies', stage())
    end
    hold_until(id, s.due or tonumber(h[JMD] or h[TIMESTAMP]) or now, 'active')
    return
  end
  local lane = lane_of(id)
  if lane then
    -- What the core says: see settle.py.
    local keeps = lanes.limits_of(lane).strict and s.keeps_strict or s.keeps
    if not keeps then
      lanes.join(id, lane, s.due or tonumber(h[JMD] or h[TIMESTAMP]) or now, 'active')
      return
    end
    lanes.keep(id, lane)
  end
  if s.due then
    local lifo = not is_delayed and priority == 0 and decoded(call('HGET', key, 'opts')).lifo
    wait_outside_lane(id, s.due, priority, lifo, 'active')
    return
  end
  if priority > 0 then
    back_to_prioritized(id, priority, tonumber(h[JM]))
  else
    back_to_wait(id, tonumber(h[JM]))
  end
  waiting_grew = true
  event('waiting', 'jobId', id, 'prev', 'active')
end

-- A run of a recurring job is over, and there is a next one.
local function end_run(id, key, h, s)
  local sid = h[RJK]
  local jmr = decoded(call('HGET', key, 'jmr'))
  local overtaken = (jmr.revision or 0) ~= s.runs.revision
  local slot = s.slot
  if overtaken then
    slot = tonumber(call('HGET', key, 'jmx')) or slot
  end
  jmr.runs, jmr.failed_runs = s.runs.runs, s.runs.failed_runs
  jmr.last_error, jmr.last_finished_ms = s.runs.last_error or nil, now
  local own = {jmr = cjson.encode(jmr)}
  if h[JM] then
    call('HSET', key, 'jmr', own.jmr)
    if call('HEXISTS', Q .. ':repeat:' .. sid, 'jmr') == 1 then
      call('HSET', Q .. ':repeat:' .. sid, 'jmr', own.jmr)
    end
  end
  local record = call('HMGET', Q .. ':repeat:' .. sid, 'name', 'data', 'limit', 'ic')
  local more = call('HMGET', key, 'data', 'opts', 'ats', 'jmc', 'jmo', 'jmz')
  local set = s.outcome == 'succeeded' and 'completed' or 'failed'
  -- The settlement has the retention of the last run; earlier runs have that of the job, or the one for runs.
  local keeps = (decoded(more[5]).o or {})[set == 'completed' and 'keep_succeeded' or 'keep_failed']
  finish(id, key, h, set, s, s.keep or (keeps and {last = keeps.last, age = keeps.age_ms} or s.keep_run))
  local limit = tonumber(record[3])
  if not slot or id ~= present_run(sid) or not record[1] or (limit and (tonumber(record[4]) or 0) >= limit) then
    return
  end
  local opts = decoded(more[2])
  opts['repeat'] = type(opts['repeat']) == 'table' and opts['repeat'] or {}
  opts['repeat'].count = (tonumber(opts['repeat'].count) or 0) + 1
  -- A scheduler's record leaves an empty payload out; repeatables of version 5, which have no count, have no payload.
  local data = record[2] or (record[4] and '{}' or more[1])
  call('HINCRBY', Q .. ':repeat:' .. sid, 'ic', 1)
  if not h[JM] then
    own = {}
    opts.attempts = opts.attempts or 0
  else
    -- The fence counts on from run to run.
    own.jmc = (tonumber(more[4]) or 0) + (tonumber(more[3]) or 0)
    own.jmo = more[5] or nil
    own.jmz = more[6] or nil
    own.jmq = set == 'completed' and s.result or nil
  end
  s.next_run = add_run(sid, slot, {name = record[1], data = data, opts = opts, priority = tonumber(h[PRIORITY]) or 0,
    own = own, ours = h[JM] and true or false})
end

-- Why a job cannot succeed as long as its children are as they are; nil where nothing prevents it.
local function why_not_succeeded(key)
  if call('EXISTS', key .. ':dependencies', key .. ':unsuccessful') == 0 then
    return nil
  end
  local failed = call('ZRANGE', key .. ':unsuccessful', 0, 0)[1]
  if failed then
    return 'the job cannot succeed, because its child ' .. failed .. ' failed'
  end
  local child = call('SRANDMEMBER', key .. ':dependencies')
  local added, started = tonumber(call('HGET', child, 'timestamp')), tonumber(call('HGET', key, 'processedOn'))
  local is_new = added and started and added > started
  return 'later: the job cannot succeed before its child ' .. child .. (is_new and ', which it got while it ran' or '')
end

local function settle_now(s)
  local id = resolve(s.id)
  local key = job_key(id)
  if not holds(call('MGET', key .. ':lock')[1], s.token) then
    return 'lost'
  end
  local h = call('HMGET', key, unpack(FIELDS_READ))
  -- A job of ours that runs although others have not ended was seized.
  local why_not = s.state == 'succeeded' and not h[JMG] and why_not_succeeded(key)
  if why_not then
    return why_not
  end
  if call('LREM', Q .. ':active', -1, id) == 0 then
    return 'lost'
  end
  if has_stalled then
    call('SREM', Q .. ':stalled', id)
  end
  for _, e in ipairs(s.events or {}) do
    feed_event(e[1], id, h[NAME], e[2], e[3])
  end
  if s.runs and h[RJK] then
    end_run(id, key, h, s)
  elseif s.state == 'waiting' then
    wait_again(id, key, h, s)
  else
    finish(id, key, h, s.state == 'succeeded' and 'completed' or 'failed', s, s.keep)
  end
  call('DEL', key .. ':lock')
  return 'done'
end

-- "done", "lost", or why it was refused, after "later: " where another attempt may succeed. An error must neither stop the
-- others nor leave the job in no list.
local function settle(s)
  local fine, answer = pcall(settle_now, s)
  if fine then
    return answer
  end
  local why = type(answer) == 'table' and answer.err or tostring(answer)
  local id = resolve(s.id)
  for _, list in ipairs({':active', ':wait', ':paused'}) do
    call('LREM', Q .. list, -1, id)
  end
  for _, set in ipairs({':prioritized', ':delayed', ':completed', ':failed'}) do
    call('ZREM', Q .. set, id)
  end
  set_aside(id)
  if s.state ~= 'failed' then
    -- It still runs: the core decides that it fails, and the worker settles it again.
    call('LPUSH', Q .. ':active', id)
    return why
  end
  call('DEL', job_key(id) .. ':lock')
  call('HSET', job_key(id), 'failedReason', s.error, 'finishedOn', now)
  call('ZADD', Q .. ':failed', now, id)
  event('failed', 'jobId', id, 'failedReason', s.error, 'prev', 'active')
  return 'done'
end
