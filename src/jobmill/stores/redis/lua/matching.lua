-- matching: those of some jobs of a queue that match a filter. ask: ids; states: {state = true}, of the jobs that match; nil for
-- all; match: see match.lua; counts: the flow whose jobs are counted by state and name where they match for sure, or nil.
-- Returns: [{state, name, count}], and [{position in ids, id, state, score or why it is held, hash}] of the others.
--- include short_request
--- include repair
--- include state
--- include job_id
--- include match
--- include why_held

local ids = {}
for i, id in ipairs(ask.ids) do
  ids[i] = resolve(id)
end
local states, sets = states_of(ids, ask.states)
local counts, found = {}, {}

local function is_counted(id, state)
  local h = redis.pcall('HMGET', job_key(id), 'name', 'jmy')
  if h.err or not h[1] or h[2] ~= ask.counts then
    return false
  end
  counts[state] = counts[state] or {}
  counts[state][h[1]] = (counts[state][h[1]] or 0) + 1
  return true
end

for i, id in ipairs(ids) do
  local state, set = states[i], sets[i]
  if state and (not ask.states or ask.states[state]) then
    local may, surely = match(id, set)
    if may and not (ask.counts and surely and is_counted(id, state)) then
      local score = set == 'delayed' and call('ZSCORE', Q .. ':delayed', id) or set == 'waiting-children' and why_held(id) or ''
      found[#found + 1] = {i, id, state, score, read_hash(id)}
    end
  end
end
local counted = {}
for state, names in pairs(counts) do
  for name, count in pairs(names) do
    counted[#counted + 1] = {state, name, count}
  end
end
return {counted, found}
