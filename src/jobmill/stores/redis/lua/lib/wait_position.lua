-- Back to their old positions in the list of waiting jobs: each before all jobs that were added after it.
local MAX_PASSED, MAX_PASSED_AT_END = 200, 100

-- The number under which a job was added. Jobs with another due time (jmd) have no position.
local function number_of(id)
  local h = redis.pcall('HMGET', Q .. ':' .. id, 'jm', 'jmd')
  return not h[2] and tonumber(h[1]) or nil
end

-- The same for the first n of these jobs, if they belong among the last ones that were added, behind `added` newer ones:
-- two loops of a worker release jobs in another order than these were added. False if they belong elsewhere. From the other
-- end, each call would read and write MAX_PASSED jobs, and would put these before others that were added before them.
local function back_to_end(list, jobs, n, added)
  local window = MAX_PASSED_AT_END + added
  local oldest = call('LINDEX', list, window - 1)
  local number = oldest and number_of(oldest)
  if not number or number > jobs[1][1] then
    return false
  end
  local newest, passed = call('LRANGE', list, 0, window - 1), added
  local placed = {unpack(newest, 1, added)}
  while n > 0 do
    local its_number = number_of(newest[passed + 1])
    while n > 0 and its_number and its_number < jobs[n][1] do
      placed[#placed + 1] = jobs[n][2]
      n = n - 1
    end
    if n > 0 then
      passed = passed + 1
      placed[#placed + 1] = newest[passed]
    end
  end
  local pushed = {}
  for i = #placed, 1, -1 do
    pushed[#pushed + 1] = placed[i]
  end
  call('LPOP', list, passed)
  call('LPUSH', list, unpack(pushed))
  return true
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
  if n == 0 or back_to_end(list, jobs, n, #added) then
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
