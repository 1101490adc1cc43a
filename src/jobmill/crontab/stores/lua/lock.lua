-- lock: the earliest documents whose score is now or before get another score; a member without a hash is one as well.
-- KEYS: the sorted set; ARGV: now, lock, most, the prefix of the hashes. Returns: id, score before, fields, for each.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local found = {}
for i = 1, #due, 2 do
  redis.call('ZADD', KEYS[1], ARGV[2], due[i])
  local fields = redis.call('HMGET', ARGV[4] .. due[i], 'interval', 'repeat_until', 'auto_remove', 'data')
  found[#found + 1] = { due[i], due[i + 1], unpack(fields) }
end
return found
