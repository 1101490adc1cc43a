-- schedule: makes, changes or removes a job scheduler as Node does.
-- ask: sid, remove; or passed (the last occurrence), next, repeat_opts, to add the next run alone; or name, data, opts (template), repeat_opts, record (flat), every, offset, start, next (of a cron)
-- Returns: the id of the scheduler's next job, or whether one was removed.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include schedulers

local sid = ask.sid
local previous = tonumber(call('ZSCORE', Q .. ':repeat', sid))
local pending = previous and 'repeat:' .. sid .. ':' .. string.format('%.0f', previous)

-- Removes the job of the next run, unless it runs already or has ended.
local function remove_pending()
  local state, set
  if pending then
    state, set = state_of(pending)
  end
  if state ~= 'waiting' then
    return nil
  end
  local deid = call('HGET', job_key(pending), 'deid')
  take_out(pending, set)
  if deid and call('GET', Q .. ':de:' .. deid) == pending then
    call('DEL', Q .. ':de:' .. deid)
  end
  delete_keys(pending)
  delayed_changed = set == 'delayed'
  return set
end

trim_events()
if ask.remove then
  if not previous then
    return 0
  end
  local set = remove_pending()
  if set then
    event('removed', 'jobId', pending, 'prev', set)
  end
  end_scheduler(sid)
  call('HDEL', Q .. ':jobmill:recurring', sid)
  return 1
end

if ask.passed then
  if previous == ask.passed and not live_run(sid) then
    local record = call('HMGET', Q .. ':repeat:' .. sid, 'name', 'data', 'opts', 'jmr', 'jmo', 'jmz')
    local opts = decoded(record[3])
    opts['repeat'] = decoded(ask.repeat_opts)
    opts['repeat'].count = call('HINCRBY', Q .. ':repeat:' .. sid, 'ic', 1)
    add_run(sid, ask.next, {name = record[1], data = record[2] or '{}', opts = opts, priority = tonumber(opts.priority) or 0,
      own = {jmr = record[4], jmo = record[5] or nil, jmz = record[6] or nil}, ours = true})
    set_markers()
  end
  return ''
end

local every = ask.every
local old = call('HMGET', Q .. ':repeat:' .. sid, 'every', 'ic', 'offset')
local had_pending = remove_pending()
local slot = ask.next
local offset = ask.offset
if every then
  local aligned = math.floor(now / every) * every
  if previous and had_pending and tonumber(old[1]) == every then
    slot = previous
    offset = offset or tonumber(old[3])
  elseif previous and tonumber(old[1]) == every then
    slot = previous + every
    if slot < now then
      slot = aligned + (offset or 0)
      slot = slot < now and slot + every or slot
    end
  elseif ask.start and ask.start > now then
    slot = ask.start
  elseif offset and offset > 0 then
    slot = aligned + offset
    slot = slot <= now and slot + every or slot
  else
    slot = now
  end
  offset = offset or tonumber(old[3]) or slot % every
  local tries = 0
  while call('EXISTS', job_key('repeat:' .. sid .. ':' .. string.format('%.0f', slot))) == 1 do
    slot = slot + every
    tries = tries + 1
    if tries > 32 then
      return redis.error_reply('ERR jobmill: the next 32 slots of this scheduler are taken')
    end
  end
end

local ic = tonumber(old[2]) or 1
local rest = {every = every, offset = offset or tonumber(old[3]) or 0, opts = ask.opts ~= '{}' and ask.opts or nil}
write_record(sid, ask.name, ic, ask.data, ask.record, rest)
local opts = decoded(ask.opts)
opts['repeat'] = decoded(ask.repeat_opts)
opts['repeat'].count = ic
opts['repeat'].every = every
opts['repeat'].offset = ask.offset
local id = add_run(sid, slot, {name = ask.name, data = ask.data, opts = opts, priority = tonumber(opts.priority) or 0,
  own = {}, ours = false})
set_markers()
return id
