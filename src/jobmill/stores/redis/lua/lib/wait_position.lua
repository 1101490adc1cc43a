-- Back to their old positions in the list of waiting jobs: each before all jobs that were added after it.
local MAX_PASSED = 200

-- The number under which a job was added. Jobs with another due time (jmd) have no position.
local function number_of(id)
  local h = redis.pcall('HMGET', Q .. ':' .. id, 'jm', 'jmd')
  return not h[2] and tonumber(h[1]) or nil
end

-- jobs: [[number, id]]. The job that is claimed next is the last one of the list.
local function back_to_list(list, jobs)
  table.sort(jobs, function(a, b)
    return a[1] < b[1]
  end)
  local last, added = call('LINDEX', list, 0), {}
  local number, n = last and number_of(last) or not last and 0, #jobs
  while n > 0 and number and jobs[n][1] > number do
    n = n - 1
  end
  for i = n + 1, #jobs do
    added[#added + 1] = jobs[i][2]  -- all others were added before it
  end
  if #added > 0 then
    call('LPUSH', list, unpack(added))
  end
  if n == 0 then
    return
  end
  local front = call('LRANGE', list, -MAX_PASSED, -1)
  local first, behind = nil, {}
  for i = 1, #front do
    local its_number = number_of(front[i])
    while its_number and n > 0 and its_number < jobs[n][1] do
      first = first or i
      behind[#behind + 1] = jobs[n][2]
      n = n - 1
    end
    if first then
      behind[#behind + 1] = front[i]
    end
  end
  for i = n, 1, -1 do
    behind[#behind + 1] = jobs[i][2]  -- before all others
  end
  if first then
    call('RPOP', list, #front - first + 1)
  end
  call('RPUSH', list, unpack(behind))
end
