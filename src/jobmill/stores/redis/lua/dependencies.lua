-- dependencies: the edges of a job, and the jobs that wait for it. ask: id, and
--   keys [[key of a dependency, policy or nil]]: returns for each {state, policy, 1 if ours, error, result or nothing}; with
--   `present`, states are those of the dependencies themselves.
--   children: returns the keys of the children of a flow that Node made, without their states.
--   dependents: how many. Returns [{key, id in its queue, policy, state, 1 if ours}].
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include flows
--- include edges

-- The policy that Node has given to a child. One that is gone has left it in the keys of its parent.
local function node_policy(child, parent)
  local h = redis.pcall('HMGET', child, 'parentKey', 'parent')
  if not h.err and h[1] == parent then
    return policy_of(h[2])
  elseif call('ZSCORE', parent .. ':unsuccessful', child) then
    return 'fpof'
  end
  return call('HEXISTS', parent .. ':failed', child) == 1 and 'idof' or 'none'
end

local BAD = {failed = true, cancelled = true}

-- The state of an edge, nil where there is none; its error or its result.
local function edge_state(child, parent, policy)
  local note = call('HGET', parent, 'jmb:' .. child)
  if note then
    local state, line = string.match(note, '^(%l+) %l+ (.*)$')
    return state, state == 'failed' and line or ''
  end
  local value = call('HGET', parent .. ':processed', child)
  if value then
    return 'succeeded', '', value
  end
  local is_pending = call('SISMEMBER', parent .. ':dependencies', child) == 1
  local reason = call('HGET', parent .. ':failed', child)
  local has_failed = reason or call('ZSCORE', parent .. ':unsuccessful', child)
  local state, h = look_at(child)
  if is_pending then
    return policy == 'none' and BAD[state] and state or 'pending', BAD[state] and policy == 'none' and failure_of(state, h).line or ''
  elseif not has_failed and not state then
    return nil, ''
  end
  state = BAD[state] and state or has_failed and 'failed' or state
  local ended = BAD[state] and failure_of(state, h[2] and h or {false, reason or false, false})
  return state, state == 'failed' and ended.line or ''
end

local function present_state(child, parent, policy)
  local state, h = look_at(child)
  if not state then
    return edge_state(child, parent, policy)
  end
  return (state == 'succeeded' or BAD[state]) and state or 'pending', state == 'failed' and failure_of(state, h).line or ''
end

local parent = job_key(ask.id)
local found = {}
if ask.children then
  local seen = {}
  for _, keys in ipairs({call('SMEMBERS', parent .. ':dependencies'), call('HKEYS', parent .. ':processed'),
    call('HKEYS', parent .. ':failed'), call('ZRANGE', parent .. ':unsuccessful', 0, -1)}) do
    for _, key in ipairs(keys) do
      if not seen[key] and key ~= latch() and key ~= stage() then
        seen[key] = true
        found[#found + 1] = key
      end
    end
  end
  return found
end
for i, one in ipairs(ask.keys or {}) do
  local child = one[1]
  local policy = one[2] or node_policy(child, parent)
  local state, line, value = (ask.present and present_state or edge_state)(child, parent, policy)
  found[i] = {state or 'cancelled', policy, redis.pcall('HEXISTS', child, 'jm'), line or '', value}
end

local function add_dependent(key, policy)
  local state = call('EXISTS', key) == 1 and edge_state(parent, key, policy)
  if state then
    found[#found + 1] = {key, policy, state, redis.pcall('HEXISTS', key, 'jm')}
  end
end

if ask.dependents then
  local h = redis.pcall('HMGET', parent, 'parentKey', 'parent')
  if h.err or not h[1] then
    return found
  elseif not is_relay(h[1]) then
    add_dependent(h[1], policy_of(h[2]))
    return found
  end
  local all = call('ZRANGE', h[1] .. ':next', 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    if #found < ask.dependents then
      add_dependent(all[i], BY_STRENGTH[tonumber(all[i + 1]) % 8])
    end
  end
end
return found
