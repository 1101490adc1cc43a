-- fsck: looks at records of one queue for one kind of damage, and repairs it where it is asked to, in the same step.
-- ask: check, ids, source: the list or set that the ids come from, repair, reads (nothing is to be changed), marker_ms.
-- Returns: the ids that are damaged.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include flows

-- Where a job stays that is in several places, the first of them that has it; but a job that runs under a lock runs.
local PLACES = {'completed', 'failed', 'waiting-children', 'delayed', 'prioritized', 'wait', 'paused', 'active'}
local LISTS = {wait = true, paused = true, active = true}

-- How often an id is in a list or sorted set.
local function times_in(place, id)
  if LISTS[place] then
    return #call('LPOS', Q .. ':' .. place, id, 'COUNT', 0)
  end
  return call('ZSCORE', Q .. ':' .. place, id) and 1 or 0
end

local function remove_from(place, id, times)
  if LISTS[place] then
    call('LREM', Q .. ':' .. place, times, id)
  else
    call('ZREM', Q .. ':' .. place, id)
  end
end

local checks = {}

function checks.id_in_two_places(id)
  local total, keep, found = 0, nil, {}
  for _, place in ipairs(PLACES) do
    local times = times_in(place, id)
    total = total + times
    if times > 0 then
      found[place] = times
      if not keep or (place == 'active' and call('EXISTS', job_key(id) .. ':lock') == 1) then
        keep = place
      end
    end
  end
  if total < 2 then
    return false
  end
  for place, times in pairs(ask.repair and found or {}) do
    local too_often = place == keep and times - 1 or times
    if too_often > 0 then
      remove_from(place, id, too_often)
    end
  end
  return true
end

function checks.id_without_hash(id)
  -- BullMQ before version 5 puts markers such as "0:0" among the jobs.
  if is_queue_key(id) or string.sub(id, 1, 2) == '0:' or call('EXISTS', job_key(id)) == 1
    or times_in(ask.source, id) == 0 then
    return false
  end
  if ask.repair then
    remove_from(ask.source, id, 0)
    call('DEL', job_key(id) .. ':lock')
    call('SREM', Q .. ':stalled', id)
  end
  return true
end

function checks.logs_without_job(id)
  local logs = job_key(id) .. ':logs'
  if is_queue_key(id) or call('EXISTS', job_key(id)) == 1 or call('EXISTS', logs) == 0 then
    return false
  end
  if ask.repair then
    call('DEL', logs)
  end
  return true
end

-- Whether a child is gone, or has succeeded: then its parent must not wait for it. A child that failed may be retried.
local function is_over(child)
  return call('EXISTS', child) == 0 or elsewhere(child, function(its_id)
    return call('ZSCORE', Q .. ':completed', its_id) and true or false
  end)
end

function checks.dependencies_gone(id)
  local key, any = job_key(id), false
  if not call('ZSCORE', Q .. ':waiting-children', id) then
    return false
  end
  for _, child in ipairs(call('SMEMBERS', key .. ':dependencies')) do
    local fine, over = true, false
    if child ~= latch() and child ~= stage() then
      fine, over = pcall(is_over, child)  -- on a cluster, it may be on another node
    end
    if fine and over then
      any = true
      if ask.repair then
        call('SREM', key .. ':dependencies', child)
        local value = call('HGET', child, 'returnvalue')
        if value then
          call('HSET', key .. ':processed', child, value)
        end
      end
    end
  end
  if any and ask.repair then
    release_if_none_pending(key)
  end
  return any
end

function checks.waiting_children_unheld(id)
  if not call('ZSCORE', Q .. ':waiting-children', id) or call('EXISTS', job_key(id)) == 0
    or call('EXISTS', job_key(id) .. ':dependencies') == 1 or call('HEXISTS', job_key(id), 'jmh') == 1 then
    return false
  end
  if ask.repair then
    release(id)
  end
  return true
end

function checks.marker_missing()
  local first = call('LINDEX', Q .. ':wait', -1) or call('ZRANGE', Q .. ':prioritized', 0, 0)[1]
  if not first or paused or concurrency == 0 or call('EXISTS', Q .. ':marker', Q .. ':limiter', Q .. ':active') > 0 then
    return false
  end
  local h = redis.pcall('HMGET', job_key(first), 'timestamp', 'jmu')
  if math.max(tonumber(h[1]) or now, tonumber(h[2]) or 0) > now - ask.marker_ms then
    return false
  end
  waiting_grew = ask.repair
  return true
end

local damaged = {}
for _, id in ipairs(ask.ids) do
  if checks[ask.check](id) then
    damaged[#damaged + 1] = id
  end
end
if ask.repair then
  set_markers()
end
return damaged
