-- What verbs that only look stand on. KEYS[1]: <prefix>:<queue>. ARGV[1]: the request, in msgpack.
local call = redis.call
local Q = KEYS[1]
local ask = cmsgpack.unpack(ARGV[1])
local paused = false
local function job_key(id)
  return Q .. ':' .. id
end
-- Of a key that is no hash, nothing.
local function looked_up(...)
  local h = redis.pcall(...)
  return h.err and {} or h
end
