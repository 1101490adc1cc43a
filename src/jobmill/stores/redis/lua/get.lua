-- get: jobs by their ids. ask: ids. Returns: for each id, {id, state, score or why it is held, hash} or nothing.
--- include short_request
--- include repair
--- include state
--- include job_id
--- include why_held

local found = {}
for i, given_id in ipairs(ask.ids) do
  local id = resolve(given_id)
  local state, set = state_of(id)
  if not state then
    found[i] = {}
  else
    local score = set == 'delayed' and call('ZSCORE', Q .. ':delayed', id) or set == 'waiting-children' and why_held(id) or ''
    found[i] = {id, state, score, read_hash(id)}
  end
end
return found
