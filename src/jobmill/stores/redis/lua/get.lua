-- get: jobs by their ids. ask: ids. Returns: for each id, {id, state, set, score, hash} or nothing.
--- include read_request
--- include repair
--- include state
--- include job_id

local found = {}
for i, given_id in ipairs(ask.ids) do
  local id = resolve(given_id)
  local state, set = state_of(id)
  if not state then
    found[i] = {}
  else
    local score = set == 'delayed' and call('ZSCORE', Q .. ':delayed', id) or ''
    found[i] = {id, state, set, score, read_hash('HGETALL', job_key(id))}
  end
end
return found
