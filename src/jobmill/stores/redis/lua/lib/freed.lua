-- Jobs that wait for no other job any more, in a few steps for all: jobs of ours in this queue, without a priority, that only
-- jobs have held, and whose due time is that of their enqueue. The others stay in `freed`, for release() in flows.lua.
-- Measured with 100 in a call, each of which frees one: 43 us a job, one by one 107.
--- include wait_position
  local ids, others = {}, {}
  for _, dependent in ipairs(freed) do
    local is_here = string.sub(dependent, 1, #P) == P and not string.find(dependent, ':', #P + 1, true)
    local list = is_here and ids or others
    list[#list + 1] = is_here and string.sub(dependent, #P + 1) or dependent
  end
  local scores = #ids > 0 and call('ZMSCORE', Q .. ':waiting-children', unpack(ids)) or {}
  local released, jobs = {}, {}
  for i, id in ipairs(ids) do
    local key = P .. id
    local h = scores[i] and redis.pcall('HMGET', key, 'jmh', 'timestamp', 'jm', 'jmg', 'jmd', 'priority') or {}
    local due = h[1] and string.match(h[1], '^{"by":%[%],"due":{"at_ms":(%d+)[,}]')
    if due and due == h[2] and h[3] and h[4] and not h[5] and (h[6] or '0') == '0' and tonumber(due) <= now then
      call('HDEL', key, 'jmh')
      call('HSET', key, 'jmu', now_text, 'delay', '0')
      redis.pcall('XADD', EVENTS, '*', 'event', 'waiting', 'jobId', id, 'prev', 'waiting-children')
      released[#released + 1] = id
      jobs[#jobs + 1] = {tonumber(h[3]), id}
    elseif scores[i] then
      others[#others + 1] = key
    end
  end
  if #released > 0 then
    back_to_list(WAIT, jobs)
    call('ZREM', Q .. ':waiting-children', unpack(released))
    has_released = true
  end
  freed = others
