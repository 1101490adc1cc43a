-- get: jobs by their ids. ask: ids. Returns: per id, {state, place, score, hash} or nothing.
--- include read_request
--- include repair
--- include state
--- include job_id

local found = {}
for i, said_id in ipairs(ask.ids) do
  local id = resolve(said_id)
  local state, place = state_of(id)
  if not state then
    found[i] = {}
  else
    local score = place == 'delayed' and call('ZSCORE', Q .. ':delayed', id) or ''
    found[i] = {id, state, place, score, looked_up('HGETALL', job_key(id))}
  end
end
return found
