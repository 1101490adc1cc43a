-- page: jobs of one list or sorted set of the queue, in its order. ask: source, start, stop (both included), state: of the
-- jobs there. Returns: for each job, {id, state, score, hash}.
--- include short_request

local key = Q .. ':' .. ask.source
local ids = {}
local scores = {}
if ask.source == 'wait' or ask.source == 'paused' or ask.source == 'active' then
  -- The job that is claimed next, or that runs longest, comes first.
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
  local is_cancelled = ask.source == 'failed' and call('ZSCORE', Q .. ':jobmill:cancelled', id) == scores[i]
  local score = ask.source == 'delayed' and scores[i] or ''
  page[i] = {id, is_cancelled and 'cancelled' or ask.state, score, read_hash(id)}
end
return page
