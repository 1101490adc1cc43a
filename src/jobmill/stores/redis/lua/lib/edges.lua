-- The edges of a job of ours: the field jmg, [[queue, id, policy, 1 if ours]]. A job may have several edges to one dependency.

-- The dependencies of a job, each once, with the policy that counts: calls act(key, policy).
local function each_dependency(jmg, act)
  local prefix = string.match(Q, '^(.*):[^:]*$')
  local policies, keys = {}, {}
  for _, edge in ipairs(decoded(jmg)) do
    local key = prefix .. ':' .. edge[1] .. ':' .. edge[2]
    if not policies[key] then
      keys[#keys + 1] = key
    end
    if STRENGTHS[edge[3]] > STRENGTHS[policies[key] or 'rdof'] or not policies[key] then
      policies[key] = edge[3]
    end
  end
  for _, key in ipairs(keys) do
    act(key, policies[key])
  end
end

-- The state of a job in any queue, and its hash's returnvalue, failedReason and jmf.
local function look_at(key)
  local state = elsewhere(key, function(id)
    return (state_of(id))
  end)
  return state, call('HMGET', key, 'returnvalue', 'failedReason', 'jmf')
end

local function failure_of(state, h)
  local reason = h[2] or 'without an error'
  local is_typed = h[3] and string.sub(h[3], -#reason) == reason
  return failure(reason, is_typed and h[3] or nil, state == 'cancelled')
end

local function reopen(child, parent_key)
  call('SADD', parent_key .. ':dependencies', child)
  call('HDEL', parent_key .. ':processed', child)
  call('HDEL', parent_key .. ':failed', child)
  call('ZREM', parent_key .. ':unsuccessful', child)
  call('HDEL', parent_key, 'jmb:' .. child)
end

-- Sets an edge to the present state of its dependency. Nothing is released: the dependent is staged, or in no list.
local function set_edge(child, parent_key, policy)
  local state, h = look_at(child)
  if not state then
    return
  end
  reopen(child, parent_key)
  if state == 'succeeded' then
    call('SREM', parent_key .. ':dependencies', child)
    call('HSET', parent_key .. ':processed', child, h[1] or 'null')
  elseif state == 'failed' or state == 'cancelled' then
    tell_failure(child, parent_key, policy, failure_of(state, h))
  end
end

-- Before a requeue: sets all edges of a job to the present states of its dependencies. False, and nothing is done, if one has
-- failed without which the job cannot run: the core refuses that.
local function refresh_edges(key, jmg)
  local can_run = true
  each_dependency(jmg, function(child, policy)
    local state = policy == 'fpof' and look_at(child)
    can_run = can_run and state ~= 'failed' and state ~= 'cancelled'
  end)
  if can_run then
    each_dependency(jmg, function(child, policy)
      set_edge(child, key, policy)
    end)
  end
  return can_run
end

-- Whether the edges of a job mean that it waits: see `verdict` in core/flows.py.
local function must_hold(key, jmg)
  local pending = call('SCARD', key .. ':dependencies')
  if pending == 0 or pending == 1 and call('SISMEMBER', key .. ':dependencies', latch()) == 1 then
    return false
  end
  local runs_now = false
  each_dependency(string.find(jmg, '"cpof"', 1, true) and jmg or '[]', function(child, policy)
    runs_now = runs_now or (policy == 'cpof' and call('HEXISTS', key, 'jmb:' .. child) == 1)
  end)
  return not runs_now
end

local function has_our_dependents(parent_key)
  return is_relay(parent_key) or call('HEXISTS', parent_key, 'jmg') == 1
end

-- Notes with a job that another one waits for it: see flows.lua.
local function link(child, dependent, policy)
  local h = call('HMGET', child, 'parentKey', 'parent')
  local parent = h[1] and call('EXISTS', h[1]) == 1 and h[1] or nil
  if parent and is_relay(parent) then
    add_to_relay(parent, dependent, policy)
    return
  end
  if not parent or parent == dependent then
    local old = parent and policy_of(h[2]) or policy
    local stronger = STRENGTHS[old] > STRENGTHS[policy] and old or policy
    call('HSET', child, 'parentKey', dependent, 'parent', parent_json(dependent, stronger))
    return
  end
  local queue, id = relay_of(child)
  local relay = queue .. ':' .. id
  delete_relay(queue, id)
  call('HSET', relay, 'name', 'relay', 'child', child, 'timestamp', now, 'data', '{}', 'opts', '{}')
  add_to_relay(relay, parent, policy_of(h[2]))
  add_to_relay(relay, dependent, policy)
  call('HSET', child, 'parentKey', relay, 'parent', parent_json(relay, 'idof'))
  local state = look_at(child)
  if state == 'waiting' or state == 'running' then
    arm_relay(relay, child)
  end
end
