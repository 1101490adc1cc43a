-- page: a stretch of the jobs in one place of the queue, in its own order. ask: place, start, stop (both included), fields or nil (all).
-- Returns: per job, {id, score, whether cancelled, values of the fields, or the whole hash}.
--- include read_request

local key = Q .. ':' .. ask.place
local ids = {}
local scores = {}
if ask.place == 'wait' or ask.place == 'paused' or ask.place == 'active' then
  -- The next to be claimed, or the one that runs longest, first.
  local found = call('LRANGE', key, -ask.stop - 1, -ask.start - 1)
  for i = #found, 1, -1 do
    ids[#ids + 1] = found[i]
  end
else
  local found = call('ZRANGE', key, ask.start, ask.stop, 'WITHSCORES')
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    scores[#ids] = found[i + 1]
  end
end
local page = {}
for i, id in ipairs(ids) do
  local cancelled = ask.place == 'failed' and call('ZSCORE', Q .. ':jobmill:cancelled', id) == scores[i]
  local h = ask.fields and looked_up('HMGET', job_key(id), unpack(ask.fields)) or looked_up('HGETALL', job_key(id))
  page[i] = {id, scores[i] or '', cancelled and 1 or 0, h}
end
return page
