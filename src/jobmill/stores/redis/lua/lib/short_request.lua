-- For verbs that need no settings of the queue. KEYS[1]: <prefix>:<queue>. ARGV[1]: the request, in msgpack.
local call = redis.call
local Q = KEYS[1]
local ask = cmsgpack.unpack(ARGV[1])
local now = ask.now
local function job_key(id)
  return Q .. ':' .. id
end
-- How many children a job has that Node made.
local function count_children(id)
  local key = job_key(id)
  local dependencies = key .. ':dependencies'
  if call('EXISTS', dependencies, key .. ':processed', key .. ':failed', key .. ':unsuccessful') == 0 then
    return 0
  end
  return call('SCARD', dependencies) - call('SISMEMBER', dependencies, Q .. ':jobmill:hold') + call('HLEN', key .. ':processed')
    + call('HLEN', key .. ':failed') + call('ZCARD', key .. ':unsuccessful')
end

-- An empty hash where the key holds something else. A run that Node has added to a scheduler of ours gets its rule, and the
-- parent of a flow that Node made the number of its children.
local function read_hash(id)
  local h = redis.pcall('HGETALL', job_key(id))
  if not h.err and call('HEXISTS', job_key(id), 'jm') == 0 then
    local fine, count = pcall(count_children, id)
    if fine and count > 0 then
      h[#h + 1], h[#h + 2] = 'jmchildren', string.format('%.0f', count)
    end
  end
  local sid, slot = string.match(id, '^repeat:(.*):([^:]*)$')
  if sid and call('ZSCORE', Q .. ':repeat', sid) == slot and not h.err and call('HEXISTS', job_key(id), 'jmr') == 0 then
    h[#h + 1], h[#h + 2] = 'jmr', redis.pcall('HGET', Q .. ':repeat:' .. sid, 'jmr')
    if type(h[#h]) ~= 'string' then
      h[#h], h[#h - 1] = nil, nil
    end
  end
  return h.err and {} or h
end
