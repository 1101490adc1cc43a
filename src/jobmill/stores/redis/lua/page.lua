-- page: matching jobs of lists and sorted sets of one slot, in their order. ask: parts [[what the keys of its queue begin with,
-- source, state: of the jobs there, start, stop (both included)]], states: {state = true}, of the jobs that match; nil for
-- all; scores: see lengths.lua; latest: final jobs that ended last come first; backwards: begin at the end; want: end with
-- this many jobs; counts: jobs that match for sure are counted and not returned; match: see match.lua.
-- Returns: for each part, how many were counted, and [{position, id, state, score or why it is held, hash}].
--- include short_request
--- include match
--- include scores
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
  local is_reversed = ask.latest and FINAL[source]
  local first = outside(key, source, is_reversed)
  local found = call(is_reversed and 'ZREVRANGE' or 'ZRANGE', key, first + start, first + stop, 'WITHSCORES')
  for i = 1, #found, 2 do
    ids[#ids + 1] = found[i]
    scores[#ids] = found[i + 1]
  end
  return ids, scores
end

local function state_there(source, state, id, score)
  if source == 'failed' and call('ZSCORE', Q .. ':jobmill:cancelled', id) == score then
    return 'cancelled'
  elseif source == 'jobmill:cancelled' and call('ZSCORE', Q .. ':failed', id) ~= score then
    return nil  -- another program has retried or removed it
  end
  return state
end

local found, pages = 0, {}

local function read(part)
  local source, state, start, page, counted = part[2], part[3], part[4], {}, 0
  Q = part[1]
  local ids, scores = range(source, start, part[5])
  local from, to, step = 1, #ids, 1
  if ask.backwards then
    from, to, step = to, from, -1
  end
  for i = from, to, step do
    if found >= ask.want then
      break
    end
    local id = ids[i]
    local its_state = state_there(source, state, id, scores[i])
    local may, surely = nil, false
    if its_state and (not ask.states or ask.states[its_state]) then
      may, surely = match(id, source)
    end
    if may then
      found = found + 1
      if surely and ask.counts then
        counted = counted + 1
      else
        local score = source == 'delayed' and scores[i] or source == 'waiting-children' and why_held(id) or ''
        page[#page + 1] = {start + i - 1, id, its_state, score, read_hash(id)}
      end
    end
  end
  return {counted, page}
end

for n = 1, #ask.parts do
  local i = ask.backwards and #ask.parts + 1 - n or n
  pages[i] = read(ask.parts[i])
end
return pages
