-- add: writes or replaces a document.
-- KEYS: the sorted set; ARGV: the key of the hash, id, sleep_until, then fields and their values.
redis.call('DEL', ARGV[1])
redis.call('HSET', ARGV[1], unpack(ARGV, 4))
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
