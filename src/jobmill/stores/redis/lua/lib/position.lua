-- Back to its old position: before all jobs that were added after it.
--- include wait_position

local function back_to_wait(id, number)
  if number then
    back_to_list(wait_key(), {{number, id}})
  else
    call('RPUSH', wait_key(), id)
  end
end

local function back_to_prioritized(id, priority, seq)
  local base = priority * TWO_32
  -- Scores before the first of a priority belong to it as well: no counter gets that far.
  local front = call('ZRANGEBYSCORE', Q .. ':prioritized', base - TWO_32 / 2, base + TWO_32 / 2, 'WITHSCORES',
    'LIMIT', 0, MAX_PASSED)
  local passed = 0
  for i = 1, seq and #front or 0, 2 do
    if (number_of(front[i]) or seq) < seq then
      passed = i
    end
  end
  local score = base
  if passed > 0 then
    score = front[passed + 1]
  elseif front[2] then
    score = math.min(base, front[2] - 1)
  end
  -- Those that stay in front make room.
  for i = 1, passed, 2 do
    call('ZADD', Q .. ':prioritized', front[i + 1] - 1, front[i])
  end
  call('ZADD', Q .. ':prioritized', score, id)
end
