-- The guard: a lock of ours is jm:<token>:<until>. It holds as long as its key lives, by the server's own clock.
-- ask.linger: how much longer keys live, for a caller with a clock of its own: only then `until` decides.
local linger = ask.linger or 0
-- Running jobs must be settled even when maxmemory is reached, otherwise no memory would ever become free. A server refuses
-- a write of a script only where it is the script's first write: so these verbs begin with a write that needs no memory.
local NOTHING = Q .. ':jobmill:nothing'

local function holds(lock, token)
  local n = #token
  return lock and string.sub(lock, 1, n + 4) == 'jm:' .. token .. ':'
    and (linger == 0 or tonumber(string.sub(lock, n + 5)) > now)
end

-- When a lock of ours ends; nil for one of Node's, which holds as long as its key is there.
local function ends(lock)
  return tonumber(string.match(lock, '^jm:.*:(%d+)$'))
end

local function lock_value(token, lease_ms)
  return 'jm:' .. token .. ':' .. string.format('%.0f', now + lease_ms)
end

local function lock(id, token, lease_ms)
  call('SET', job_key(id) .. ':lock', lock_value(token, lease_ms), 'PX', lease_ms + linger)
end
