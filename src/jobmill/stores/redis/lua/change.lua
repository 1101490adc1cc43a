-- change: what the core has decided for jobs without a lease, as BullMQ's moves.
-- ask: verb, from {state: true}: the states that allow it, changes [{id, events [[type, attempt, data]], and as the verb needs:
--   due, priority, resets [field], keep, removes, token, worker, lease_ms; held (JSON), latched, delay: what holds it then;
--   was: what held it when this was decided (jmh, or "" for its children alone), nil if nothing did; run: see enqueue.py}].
-- Returns: for each, {"done"}, {"gone"}, {"state", the state}, {"taken", the live job with its key}, {"refused", why}, or
--   {"again"} where something else holds it by now.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include schedulers
--- include flows
--- include retention
--- include update_run
--- include lease
--- include job_id
--- include edges
--- include changes

local verbs = {cancel = cancel}

-- A recurring job that was ended runs again: its scheduler is made from its last run.
local function begin_scheduler_again(id, h)
  local opts = decoded(h.opts)
  local rule = type(opts['repeat']) == 'table' and opts['repeat'] or {}
  local data, jmr, lane = unpack(call('HMGET', job_key(id), 'data', 'jmr', 'jmz'))
  local rest = {jmr = jmr or '{}', jmo = h.jmo, jmz = lane or nil}
  for _, field in ipairs({'pattern', 'tz', 'every', 'endDate', 'limit'}) do
    rest[field] = rule[field]
  end
  write_record(h.rjk, h.name, rule.count or 1, data, {'offset', 0}, rest)
  note_rearm(h.rjk, rule)
  local slot = string.match(id, '[^:]*$')
  call('ZADD', Q .. ':repeat', slot, h.rjk)
  call('HSET', Q .. ':jobmill:recurring', h.rjk, slot)
end

-- A finished child of a flow that Node made runs again: its parent waits for it once more.
local function node_child_back(child, parent_key, parent)
  reopen(child, parent_key)
  local state, set = state_of(parent)
  -- A parent that must fail does not wait.
  if state == 'waiting' and set ~= 'waiting-children' and call('HEXISTS', parent_key, 'defa') == 0 then
    take_out(parent, set)
    hold_children(parent, set)
  end
end

-- The same for a dependent of ours: see `reopens` and `held_again` in core/changes.py.
local function our_child_back(child, parent_key, parent)
  local state, set = state_of(parent)
  if set == 'waiting-children' and call('HEXISTS', parent_key, 'defa') == 0 then
    if not (lanes_rule and lanes.stands(parent)) then
      reopen(child, parent_key)
    end
  elseif state == 'waiting' and call('HEXISTS', parent_key, 'defa') == 1
    and call('ZSCORE', parent_key .. ':unsuccessful', child) then
    reopen(child, parent_key)
    if call('EXISTS', parent_key .. ':unsuccessful') == 1 then
      return  -- it must fail because of another one
    end
    call('HDEL', parent_key, 'defa')
    if set == 'waiting-children' and lanes_rule and lanes.stands(parent) then
      hold_until(parent, now)
    end
    if set ~= 'waiting-children' then
      local h = call('HMGET', parent_key, 'jmd', 'timestamp')
      local score = set == 'delayed' and call('ZSCORE', Q .. ':delayed', parent)
      take_out(parent, set)
      hold_until(parent, score and math.floor(tonumber(score) / 4096) or tonumber(h[1] or h[2]) or now,
        set == 'wait' and 'waiting' or set)
    end
  end
end

local function child_back(child, parent_key)
  if call('EXISTS', parent_key) == 1 then
    local is_ours = call('HEXISTS', parent_key, 'jmg') == 1
    elsewhere(parent_key, function(parent)
      (is_ours and our_child_back or node_child_back)(child, parent_key, parent)
    end)
  end
end

-- A job runs again: those that still wait for it wait for its new end.
local function back_to_dependents(id, parent_key)
  local child = job_key(id)
  if not is_relay(parent_key) then
    child_back(child, parent_key)
    return
  end
  for _, dependent in ipairs(call('ZRANGE', parent_key .. ':next', 0, -1)) do
    child_back(child, dependent)
  end
  arm_relay(parent_key, child)
end

function verbs.requeue(id, h, set, p)
  local key = job_key(id)
  local owner = h.deid and live_owner(h.deid)
  if owner then
    return {'taken', owner}
  end
  -- A recurring job has the same key as its scheduler: see ids.py.
  local sid = h.rjk or (h.deid and string.gsub(string.gsub(h.deid, '%%', '%%25'), ':', '%%3A'))
  local live = sid and live_run(sid)
  if live then
    return {'taken', live}
  end
  if h.jmg and not refresh_edges(key, h.jmg) then
    return {'again', ''}
  end
  if h.deid then
    hold_key(id, h.deid)
  end
  if h.rjk and h.jm then
    begin_scheduler_again(id, h)
  end
  take_out(id, set)
  forget_retention(id)
  call('HDEL', key, 'jms', 'jmv', unpack(p.resets))
  if p.clears then
    for _, field in ipairs(call('HKEYS', key)) do
      if string.find(field, '^jm[si]:') then
        call('HDEL', key, field)
      end
    end
  end
  call('HSET', key, 'jmd', p.due, 'jmu', now)
  if h.parentKey then
    back_to_dependents(id, h.parentKey)
  end
  if p.due > now then
    call('HSET', key, 'delay', p.due - now)
  end
  if h.jmg and must_hold(key, h.jmg) then
    hold_until(id, p.due, set)
  elseif not h.jmg and call('EXISTS', key .. ':dependencies') == 1 then
    hold_children(id, set)
  else
    wait_until(id, p.due, tonumber(h.priority) or 0, decoded(h.opts).lifo, set)
  end
  feed_events(id, h, p)
end

function verbs.hold(id, h, set, p)
  local is_new = set ~= 'waiting-children'
  if is_new then
    take_out(id, set)
  end
  hold(id, p.held, p.latched, p.delay, is_new and (set == 'wait' and 'waiting' or set))
  if not (is_new or p.latched) then
    release_if_none_pending(job_key(id))  -- the jobs that it waited for have ended meanwhile
  end
end

-- Back to where it would be if nobody had held it.
function verbs.release(id, h, set, p)
  if p.held then
    return verbs.hold(id, h, set, p)
  end
  end_hold(id)
  local key = job_key(id)
  call('HSET', key, 'jmu', now, 'delay', math.max(0, p.due - now))
  if call('EXISTS', key .. ':dependencies') == 1 and call('HEXISTS', key, 'defa') == 0 then
    return  -- it has got children meanwhile
  end
  take_out(id, set)
  free(id, p.due, h, set)
end

-- Another rule for a recurring job, from a person, or the one that code has stated.
function verbs.pin(id, h, set, p)
  local jmr = h.rjk and (h.jmr or call('HGET', Q .. ':repeat:' .. h.rjk, 'jmr'))
  if not jmr then
    return {'refused', 'Node made this job scheduler: change it with upsertJobScheduler'}
  end
  local old, run = decoded(jmr), p.run
  old.rule, old.pinned, old.stated = run.rule, run.pinned or nil, run.stated or nil
  run.sid, run.name, run.data, run.opts, run.priority = h.rjk, h.name, h.data, decoded(h.opts), tonumber(h.priority) or 0
  run.opts['repeat'] = decoded(run.rule_opts)
  run.own, run.ours = {jmo = h.jmo or call('HGET', Q .. ':repeat:' .. h.rjk, 'jmo') or nil}, true
  update_run(id, run, old)
end

verbs.releasepin = verbs.pin

function verbs.reschedule(id, h, set, p)
  if p.held then
    return verbs.hold(id, h, set, p)
  end
  reschedule(id, h, set, p.due)
end

function verbs.reprioritize(id, h, set, p)
  call('HSET', job_key(id), 'priority', p.priority, 'jmu', now)
  local lane = lane_of(id)
  if lane then
    lanes.reprioritize(id, lane, p.priority)
  end
  if set == 'wait' or set == 'prioritized' then
    take_out(id, set)
    to_waiting(id, p.priority)
  end
end

-- The keys of all children of a flow's parent, in whatever state they are.
local function children_of(id)
  local key = job_key(id)
  local found = call('HKEYS', key .. ':processed')
  for _, more in ipairs({call('SMEMBERS', key .. ':dependencies'), call('HKEYS', key .. ':failed'),
    call('ZRANGE', key .. ':unsuccessful', 0, -1)}) do
    for _, child in ipairs(more) do
      if child ~= latch() and child ~= stage() then
        found[#found + 1] = child
      end
    end
  end
  return found
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

-- As in BullMQ, the children of a flow that Node made go with their parent. Those that a job of ours waits for stay.
function verbs.remove(id, h, set, p)
  if not h.jmg and has_running_child(id) then
    return {'refused', 'a child of the job is running'}
  end
  local children = h.jmg and {} or children_of(id)
  for _, child in ipairs(children) do
    elsewhere(child, function(its_id)
      local state, its_set = state_of(its_id)
      if state then
        local its_h = read(its_id)
        local attempt = (tonumber(its_h.jme or its_h.atm) or 0) + 1
        verbs.remove(its_id, its_h, its_set, {events = {{'removed', attempt, '{}'}}})
      end
    end)
  end
  if #children > 0 then
    set = select(2, state_of(id))  -- it waited for the last of them
  end
  take_out(id, set)
  forget_retention(id)
  end_recurrence(id, h)
  drop_deduplication(id, h.deid)
  if h.parentKey then
    -- For a dependent of ours, a job that is removed before its end was cancelled.
    if set ~= 'completed' and set ~= 'failed' and has_our_dependents(h.parentKey) then
      child_ended(id, h.parentKey, h.parent, failure('cancelled', nil, true))
    end
    child_gone(id, h.parentKey)
  end
  if h.rjk and call('HGET', Q .. ':jobmill:recurring', h.rjk) == string.match(id, '[^:]*$') then
    call('HDEL', Q .. ':jobmill:recurring', h.rjk)
  end
  feed_events(id, h, p, true)
  delete_keys(id, h.jmy)
  event('removed', 'jobId', id, 'prev', set)
end

function verbs.seize(id, h, set, p)
  if set == 'delayed' then
    -- Its score is its due time, and it leaves the set.
    call('HSET', job_key(id), 'jms', math.floor(tonumber(call('ZSCORE', Q .. ':delayed', id)) / 4096))
  end
  if set ~= 'active' then
    take_out(id, set)
    call('LPUSH', Q .. ':active', id)
  end
  if p.due then
    -- It was held.
    call('HSET', job_key(id), 'jmd', p.due, unpack(p.due > now and {'jms', p.due} or {}))
    end_hold(id)
  end
  local lane = lane_of(id)
  if lane then
    lanes.take_slot(id, lane)
  end
  call('SREM', Q .. ':stalled', id)
  call('HSET', job_key(id), 'processedOn', now, 'pb', p.worker, 'ats', (tonumber(h.ats) or 0) + 1, 'delay', 0)
  lock(id, p.token, p.lease_ms)
  event('active', 'jobId', id, 'prev', 'waiting')
  feed_events(id, h, p)
end

-- An error must neither stop the others nor leave the job in no list.
local IF_HELD_AS_BEFORE = {hold = true, release = true, reschedule = true, pin = true, releasepin = true}

local function change_one(id, set, p)
  local fine, answer = pcall(function()
    local h = read(id)
    local is_held = set == 'waiting-children' and (h.jmh or '') or nil
    if IF_HELD_AS_BEFORE[ask.verb] and is_held ~= p.was then
      return {'again', ''}
    end
    return verbs[ask.verb](id, h, set, p)
  end)
  if fine then
    return answer or {'done', ''}
  end
  local _, now_in = state_of(id)
  if now_in == 'wait' and not call('LPOS', Q .. ':wait', id) and not call('LPOS', Q .. ':paused', id) then
    call('RPUSH', wait_key(), id)
  end
  return {'refused', type(answer) == 'table' and answer.err or tostring(answer)}
end

-- Frees memory, and so must not be refused when maxmemory is reached: see lease.lua.
call('DEL', NOTHING)
trim_events()
local answers = {}
for i, p in ipairs(ask.changes) do
  local id = resolve(p.id)
  local state, set = state_of(id)
  if not state then
    answers[i] = {'gone', ''}
  elseif not ask.from[state] then
    answers[i] = {'state', state}
  else
    set_aside(id)
    answers[i] = change_one(id, set, p)
  end
end
set_markers()
return answers
