-- page: jobs of lists and sorted sets of one slot, in their order. ask: parts [[what the keys of its queue begin with,
-- source, state: of the jobs there, start, stop (both included)]], key: jobs with another unique key are left out; nil for
-- all; latest: final jobs that ended last come first. Returns: for each part, [{position, id, state, score or why it is held,
-- hash}].
--- include short_request
--- include unique_key
--- include why_held

local FINAL = {completed = true, failed = true, ['jobmill:cancelled'] = true}

-- The ids, and the scores in a sorted set.
local function range(source, start, stop)
  local key, ids, scores = Q .. ':' .. source, {}, {}
  if source == 'wait' or source == 'paused' or source == 'active' then
    -- The job that is claimed next, or that runs longest, comes first.
    local found = call('LRANGE', key, -stop - 1, -start - 1)
    for i = #found, 1, -1 do
      ids[#ids + 1] = found[i]
    end
    return ids, scores
  end
  local found = call(ask.latest and FINAL[source] and 'ZREVRANGE' or 'ZRANGE', key, start, stop, 'WITHSCORES')
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    scores[#ids] = found[i + 1]
  end
  return ids, scores
end

local pages = {}
for n, part in ipairs(ask.parts) do
  local source, state, start = part[2], part[3], part[4]
  Q = part[1]
  local page = {}
  local ids, scores = range(source, start, part[5])
  for i, id in ipairs(ids) do
    local its_state = state
    if source == 'failed' and call('ZSCORE', Q .. ':jobmill:cancelled', id) == scores[i] then
      its_state = 'cancelled'
    elseif source == 'jobmill:cancelled' and call('ZSCORE', Q .. ':failed', id) ~= scores[i] then
      its_state = nil  -- another program has retried or removed it
    end
    if its_state and may_match(id) then
      local score = source == 'delayed' and scores[i] or source == 'waiting-children' and why_held(id) or ''
      page[#page + 1] = {start + i - 1, id, its_state, score, read_hash(id)}
    end
  end
  pages[n] = page
end
return pages
