-- flows: the ids of flows of many queues of one slot, in descending order. ask: queues [what their keys begin with], before: an id
-- or nil, limit. Returns: for each queue, at most `limit` ids. A flow whose jobs Node has removed is forgotten.
--- include short_request

-- How many jobs that are gone a call forgets.
local may_forget = 10 * ask.limit

local function has_jobs(flow)
  local set = Q .. ':jobmill:flow:' .. flow
  while true do
    local id = call('SRANDMEMBER', set)
    if not id then
      call('ZREM', Q .. ':jobmill:flows', flow)
      return false
    elseif call('EXISTS', job_key(id)) == 1 or may_forget == 0 then
      return true
    end
    may_forget = may_forget - 1
    call('SREM', set, id)
  end
end

local replies = {}
for i, queue in ipairs(ask.queues) do
  Q = queue
  local found, highest = {}, ask.before and '(' .. ask.before or '+'
  while highest and #found < ask.limit do
    local some = call('ZREVRANGEBYLEX', Q .. ':jobmill:flows', highest, '-', 'LIMIT', 0, ask.limit)
    for _, flow in ipairs(some) do
      if #found < ask.limit and has_jobs(flow) then
        found[#found + 1] = flow
      end
    end
    highest = #some == ask.limit and '(' .. some[#some] or nil
  end
  replies[i] = found
end
return replies
