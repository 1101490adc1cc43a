-- For verbs that need no settings of the queue. KEYS[1]: <prefix>:<queue>. ARGV[1]: the request, in msgpack.
local call = redis.call
local Q = KEYS[1]
local ask = cmsgpack.unpack(ARGV[1])
local now = ask.now
local function job_key(id)
  return Q .. ':' .. id
end
-- An empty hash where the key holds something else.
local function read_hash(id)
  local h = redis.pcall('HGETALL', job_key(id))
  return h.err and {} or h
end
