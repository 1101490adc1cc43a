-- clean: removes jobs of one list or sorted set as Node does: those older than `before`, at most `limit` (0: all).
-- ask: source, before, limit, silent (drain: no event, any age). Returns: their ids.
--- include request
--- include events
--- include waiting
--- include repair
--- include add
--- include schedulers
--- include flows
--- include retention

local key = Q .. ':' .. ask.source
local is_list = ask.source == 'wait' or ask.source == 'active' or ask.source == 'paused'
local removed = {}

local function is_old(h)
  if ask.silent or ask.source == 'completed' or ask.source == 'failed' then
    return true
  end
  return (tonumber(h[2] or h[3] or h[4]) or 0) <= ask.before
end

local ids
if ask.source == 'completed' or ask.source == 'failed' then
  ids = call('ZRANGEBYSCORE', key, '-inf', ask.before, 'LIMIT', 0, ask.limit > 0 and ask.limit or 10000)
elseif is_list then
  ids = {}
  local found = call('LRANGE', key, 0, -1)
  for i = #found, 1, -1 do
    ids[#ids + 1] = found[i]
  end
else
  ids = call('ZRANGE', key, 0, -1)
end
for _, id in ipairs(ids) do
  if ask.limit > 0 and #removed >= ask.limit then
    break
  end
  local h = redis.pcall('HMGET', job_key(id), 'rjk', 'finishedOn', 'processedOn', 'timestamp', 'deid')
  local is_held = ask.source == 'active' and call('EXISTS', job_key(id) .. ':lock') == 1
  -- The next run of a scheduler stays: without it the scheduler would stand still.
  local is_next_run = h[1] and id == present_run(h[1])
  if not is_next_run and not is_held and is_old(h) then
    if is_list then
      call('LREM', key, -1, id)
    end
    drop_deduplication(id, h[5])
    forget(id, is_list and 'completed' or ask.source)
    removed[#removed + 1] = id
  end
end
set_markers()
if not ask.silent then
  event('cleaned', 'count', #removed)
end
return removed
