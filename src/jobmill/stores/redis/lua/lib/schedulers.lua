-- Runs of recurring jobs: a job scheduler of BullMQ has a record, and one job for its next run.
-- jmr, in the job's hash, is what the port knows of the recurrence; see codec.py.

-- The job of a scheduler's present run, while it is live.
local function live_run(sid)
  local slot = call('ZSCORE', Q .. ':repeat', sid)
  if not slot then
    return nil
  end
  local id = 'repeat:' .. sid .. ':' .. slot
  if call('EXISTS', job_key(id)) == 0 or call('ZSCORE', Q .. ':completed', id) or call('ZSCORE', Q .. ':failed', id) then
    return nil
  end
  return id
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

-- Removes a scheduler, but not its job.
local function end_scheduler(sid)
  call('ZREM', Q .. ':repeat', sid)
  call('DEL', Q .. ':repeat:' .. sid)
end
