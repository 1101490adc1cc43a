-- Enqueues one job. It needs: events, waiting, repair, state, add, schedulers and held.

-- Gives the deduplication id to this job: nil, or the job that has it already.
local function owner_of(id, special, job)
  local mode, deid = special.dedup or {}, special.deid
  local owner_key = Q .. ':de:' .. deid
  local ttl = not mode.keepLastIfActive and mode.ttl or nil
  local owner = call('GET', owner_key)
  if owner and call('EXISTS', job_key(owner)) == 0 and call('PTTL', owner_key) == -1 then
    owner = false  -- its job does not exist any more
  end
  if not owner then
    -- The time of a key may end before the job that has it: see policy.lua.
    owner = call('HGET', Q .. ':jobmill:timed', deid)
    local state = owner and state_of(owner)
    owner = (state == 'waiting' or state == 'running') and owner
  end
  if not owner then
    call('SET', owner_key, id, unpack(ttl and {'PX', ttl} or {}))
    return nil
  end
  if mode.replace and call('ZREM', Q .. ':delayed', owner) == 1 then
    delete_keys(owner)
    event('removed', 'jobId', owner, 'prev', 'delayed')
    event('deduplicated', 'jobId', id, 'deduplicationId', deid, 'deduplicatedJobId', owner)
    call('DEL', Q .. ':dn:' .. deid)
    call('SET', owner_key, id, unpack(ttl and mode.extend and {'PX', ttl} or {'KEEPTTL'}))
    return nil
  end
  if mode.keepLastIfActive and call('LPOS', Q .. ':active', owner) then
    call('DEL', Q .. ':dn:' .. deid)
    call('HSET', Q .. ':dn:' .. deid, 'name', job[2], 'data', job[3], 'opts', job[4], 'jid', id)
    call('PERSIST', owner_key)
  end
  if ttl and mode.extend then
    call('SET', owner_key, owner, 'PX', ttl)
  end
  -- There is no event where the owner would have been replaced but has begun to run.
  if not mode.replace then
    event('deduplicated', 'jobId', owner, 'deduplicationId', deid, 'deduplicatedJobId', id)
  end
  if mode.reschedule and job[5] > 0 and call('ZREM', Q .. ':delayed', owner) == 1 then
    call('HSET', job_key(owner), 'delay', job[5])
    to_delayed(owner, job[6])
    event('delayed', 'jobId', owner, 'delay', job[6])
  end
  return owner
end

-- A rule without the mark that a handler declared it.
local function bare(rule)
  return (string.gsub(rule or '', ',"declared":true', ''))
end

--- include update_run

-- Code states a rule for a live recurring job. Where a person has pinned another one, the statement is stored beside it.
local function state_rule(live, run)
  local key, record_key = job_key(live), Q .. ':repeat:' .. run.sid
  -- A run that Node has added has no rule of ours.
  local old = decoded(call('HGET', key, 'jmr') or call('HGET', record_key, 'jmr'))
  call('HSET', key, 'data', run.data, 'jmu', now)
  if old.pinned ~= bare(old.rule) then
    old.pinned, old.stated = nil, nil  -- a process of an older version has replaced the pinned rule
  end
  local is_same = run.keeps_due and bare(old.rule) == bare(run.rule)
  if not is_same and not old.pinned then
    old.rule = run.rule
    return 'updated', update_run(live, run, old)
  end
  call('HDEL', record_key, 'data')
  if run.data ~= '{}' then
    call('HSET', record_key, 'data', run.data)
  end
  local before = (old.rule or '') .. (old.stated or '')
  if old.pinned then
    old.stated = bare(run.rule)
    old.rule = run.declared and string.sub(bare(old.rule), 1, -2) .. ',"declared":true}' or bare(old.rule)
  else
    old.rule = run.rule
  end
  if old.rule .. (old.stated or '') ~= before then
    call('HSET', key, 'jmr', cjson.encode(old))
    call('HSET', record_key, 'jmr', cjson.encode(old))
  end
  return old.pinned and 'pinned' or 'updated', live
end

local function enqueue_recurring(job, special, number)
  local owner = call('GET', Q .. ':de:' .. special.deid)
  if owner and call('EXISTS', job_key(owner)) == 1 then
    return 'duplicate', owner
  end
  local run = special.run
  run.name, run.data, run.opts, run.slot, run.priority = job[2], job[3], decoded(job[4]), job[6], job[7]
  run.opts['repeat'] = decoded(run.rule_opts)
  run.opts['repeat'].count = 1
  run.own, run.ours, run.number = {}, true, number
  for i = 1, #(job[8] or {}), 2 do
    run.own[job[8][i]] = job[8][i + 1]
  end
  if special.lane then
    lanes.begin()
    run.own.jmz = special.lane
  end
  call(run.declared and 'SADD' or 'SREM', Q .. ':jobmill:declared', run.sid)
  local live = live_run(run.sid)
  if live then
    return state_rule(live, run)
  end
  note_rearm(run.sid, run.opts['repeat'])
  run.own.jmr = cjson.encode({rule = run.rule, revision = 0})
  write_record(run.sid, run.name, 1, run.data, run.record, run.own)
  local id = add_run(run.sid, run.slot, run)
  feed_event('enqueued', id, run.name, 1)
  return 'created', id
end

-- Set in policy.lua, where it is included.
local by_policy

-- `held`: the job waits for others, and is put nowhere yet.
local function enqueue(job, number, held)
  local special = job[9] or {}
  if special.run then
    return enqueue_recurring(job, special, number)
  end
  local id = job[1] or string.format('%.0f', number)
  if job[1] and call('EXISTS', job_key(id)) == 1 then
    event('duplicated', 'jobId', id)
    return 'exists', id
  end
  local own = job[8] or {}
  if special.deid then
    local how, owner
    if special.taken then
      how, owner = by_policy(id, special, job)
    else
      owner = special.sid and live_run(special.sid) or owner_of(id, special, job)
    end
    if owner then
      return how or 'duplicate', owner
    end
    own[#own + 1], own[#own + 2] = 'deid', special.deid
  end
  if ask.ours then
    own[#own + 1], own[#own + 2] = 'jm', number
  end
  local lane, lane_due, position = special.lane, nil, nil
  if lane then
    lanes.begin()
    lane_due = job[5] > 0 and job[6] or now
    own[#own + 1], own[#own + 2] = 'jmz', lane
    if not held then
      position = lanes.position_of(job[7], lane_due, number)
      own[#own + 1], own[#own + 2] = 'jmj', position .. '-'
    end
  end
  add({id = id, name = job[2], data = job[3], opts = job[4], delay = job[5], due = job[6], priority = job[7], own = own,
    lifo = special.lifo, timestamp = special.timestamp, held = held or lane})
  if position then
    lanes.stand(lane, id, position, lane_due, '')
  end
  if own[1] == 'jmy' then
    call('SADD', Q .. ':jobmill:flow:' .. own[2], id)
    call('ZADD', Q .. ':jobmill:flows', 0, own[2])
  end
  feed_event('enqueued', id, job[2], 1)
  return 'created', id
end

-- Whether a job that stands for a new one is ours: 1 or 0. The job may have been removed: only ids of Node are numbers.
local function is_ours(how, id)
  if how == 'created' then
    return ask.ours and 1 or 0
  end
  local is_marked = redis.pcall('HEXISTS', job_key(id), 'jm') == 1
  return (is_marked or call('EXISTS', job_key(id)) == 0 and not string.find(id, '^%d+$')) and 1 or 0
end
