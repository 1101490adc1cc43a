-- Runs of recurring jobs: a job scheduler of BullMQ has a record, and one job for its next run.
-- jmr, in the job's hash, is what the port knows of the recurrence; see codec.py.

-- The id of a scheduler's present run; nil where there is no such scheduler.
local function present_run(sid)
  local slot = call('ZSCORE', Q .. ':repeat', sid)
  return slot and 'repeat:' .. sid .. ':' .. slot or nil
end

-- The same, while the run is live.
local function live_run(sid)
  local id = present_run(sid)
  if id and call('EXISTS', job_key(id)) == 1
    and not call('ZSCORE', Q .. ':completed', id) and not call('ZSCORE', Q .. ':failed', id) then
    return id
  end
  return nil
end

-- Writes a scheduler's record: flat fields, and our own in a table, for runs that Node makes. An empty payload is left out.
local function write_record(sid, name, ic, data, record, own)
  local key = Q .. ':repeat:' .. sid
  call('DEL', key)
  call('HSET', key, 'name', name, 'ic', ic, unpack(record))
  if data ~= '{}' then
    call('HSET', key, 'data', data)
  end
  for field, value in pairs(own) do
    call('HSET', key, field, value)
  end
end

-- Adds the next run of a scheduler, at `slot`, or right after it where an earlier run has that id.
-- run: name, data, opts (a table), priority, ours, number (where it was counted already), own (a table of own fields)
local function add_run(sid, slot, run)
  while call('EXISTS', job_key('repeat:' .. sid .. ':' .. slot)) == 1 do
    slot = slot + 1
  end
  local id = 'repeat:' .. sid .. ':' .. slot
  local delay = math.max(0, slot - now)
  local opts = run.opts
  opts.jobId = id
  opts.delay = delay
  opts.timestamp = now
  opts.prevMillis = opts['repeat'].pattern and slot or nil
  opts.repeatJobKey = sid
  call('ZADD', Q .. ':repeat', slot, sid)
  call('HSET', Q .. ':jobmill:recurring', sid, slot)
  local number = run.number or call('INCR', Q .. ':id')
  local own = run.ours and {'jm', number} or {}
  for field, value in pairs(run.own) do
    own[#own + 1] = field
    own[#own + 1] = value
  end
  add({id = id, name = run.name, data = run.data, opts = cjson.encode(opts), delay = delay, due = slot,
    priority = run.priority, rjk = sid, own = own})
  return id
end

-- Notes whether only Jobmill can add the next run of a scheduler: Node has no words for its rule, see bullmq_options.py.
local function note_rearm(sid, rule)
  call(rule.endDate == 1 and 'SADD' or 'SREM', Q .. ':jobmill:rearm', sid)
end

-- Removes a scheduler, but not its job.
local function end_scheduler(sid)
  call('ZREM', Q .. ':repeat', sid)
  call('DEL', Q .. ':repeat:' .. sid)
end
