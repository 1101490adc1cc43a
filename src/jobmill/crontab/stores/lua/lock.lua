-- lock: gives the earliest documents whose score is now or before another score. A member without a hash is a document too.
-- KEYS: the sorted set; ARGV: now, lock, limit, the prefix of the hashes. Returns: id, score before, fields, for each.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local found = {}
-- Read everything before locking anything: an error does not undo writes.
for i = 1, #due, 2 do
  local fields = redis.pcall('HMGET', ARGV[4] .. due[i], 'interval', 'repeat_until', 'auto_remove', 'data')
  if fields.err and string.find(fields.err, 'WRONGTYPE', 1, true) then
    fields = { false, false, false, false } -- another type than a hash has no fields
  elseif fields.err then
    return fields
  end
  found[#found + 1] = { due[i], due[i + 1], unpack(fields) }
end
for i = 1, #due, 2 do
  redis.call('ZADD', KEYS[1], ARGV[2], due[i])
end
return found
