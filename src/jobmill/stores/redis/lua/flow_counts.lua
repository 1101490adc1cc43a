-- flow_counts: how many jobs of flows are in each state. ask: queues [what their keys begin with] of one slot, flows [ids],
-- limit: how many jobs of a flow are counted in each queue. Returns for each queue: [[position in flows, state, count]].
--- include short_request
--- include repair
--- include state

local replies = {}
for i, queue in ipairs(ask.queues) do
  Q = queue
  local counts = {}
  for position, flow in ipairs(ask.flows) do
    local states = {}
    local ids = call('SRANDMEMBER', Q .. ':jobmill:flow:' .. flow, ask.limit)
    local found = states_of(ids)
    for i = 1, #ids do
      local state = found[i]
      if state then
        states[state] = (states[state] or 0) + 1
      end
    end
    for state, count in pairs(states) do
      counts[#counts + 1] = {position, state, count}
    end
  end
  replies[i] = counts
end
return replies
