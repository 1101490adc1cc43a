-- A new job: its hash, its events and the set that it waits in.
-- job: id, name, data, opts, priority, delay (ms), due (ms), lifo, deid, rjk, timestamp, own (own fields, flat), held: it waits
-- for jobs and is put nowhere yet
local function add(job)
  local key = job_key(job.id)
  call('HSET', key, 'name', job.name, 'data', job.data, 'opts', job.opts, 'timestamp', job.timestamp or now,
    'delay', job.delay, 'priority', job.priority)
  if job.deid then
    call('HSET', key, 'deid', job.deid)
  end
  if job.rjk then
    call('HSET', key, 'rjk', job.rjk)
  end
  if job.own and #job.own > 0 then
    call('HSET', key, unpack(job.own))
  end
  event('added', 'jobId', job.id, 'name', job.name)
  if job.held then
    return
  end
  wait_until(job.id, job.delay > 0 and job.due or now, job.priority, job.lifo)
end

local function leave_flow(id, flow)
  local set = Q .. ':jobmill:flow:' .. flow
  call('SREM', set, id)
  if call('EXISTS', set) == 0 then
    call('ZREM', Q .. ':jobmill:flows', flow)
  end
end

-- The keys that belong to one job, and nothing else of it. `flow`: the flow that it is in, or false.
local function delete_keys(id, flow)
  if is_queue_key(id) then
    return
  end
  if flow then
    leave_flow(id, flow)
  end
  if lanes_rule then
    lanes.gone(id)
  end
  local key = job_key(id)
  call('DEL', key, key .. ':lock', key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed',
    key .. ':unsuccessful')
end

-- The job is removed: so is its deduplication id, with the job that was kept back.
local function drop_deduplication(id, deid)
  if deid and call('GET', Q .. ':de:' .. deid) == id then
    call('DEL', Q .. ':de:' .. deid, Q .. ':dn:' .. deid)
  end
end

-- The job has ended or is removed: its deduplication id is free for the last job that was kept back meanwhile.
local function free_deduplication(id, deid)
  local owner = Q .. ':de:' .. deid
  if call('GET', owner) ~= id or call('PTTL', owner) ~= -1 then
    return
  end
  call('DEL', owner)
  local kept = call('HMGET', Q .. ':dn:' .. deid, 'name', 'data', 'opts', 'jid')
  if not kept[1] then
    return
  end
  call('DEL', Q .. ':dn:' .. deid)
  call('SET', owner, kept[4])
  call('INCR', Q .. ':id')
  local opts = decoded(kept[3])
  local delay = tonumber(opts.delay) or 0
  add({id = kept[4], name = kept[1], data = kept[2], opts = kept[3], delay = delay, due = now + delay,
    priority = tonumber(opts.priority) or 0, lifo = opts.lifo, deid = deid})
end
