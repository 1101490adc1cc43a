-- finish: writes changes of documents, each only while its score equals its fence. An empty argument means: no change, or no fence.
-- KEYS: the sorted set; ARGV: the prefix of the hashes, then for each: id, fence or '', sleep_until ('', 'null' or ms),
-- auto_remove ('', 0, 1), remove ('', 1). Returns for each: 1 if it matched; 2 if it did not match, but is in the
-- requested state already; else 0.
local set = KEYS[1]
local function is_so(score, key, sleep_until, remove)
  if remove ~= '' then
    return not score and redis.call('EXISTS', key) == 0
  elseif sleep_until == 'null' then
    return not score
  end
  return score and sleep_until ~= '' and tonumber(score) == tonumber(sleep_until)
end
local function finish(id, fence, sleep_until, auto_remove, remove)
  local key = ARGV[1] .. id
  local score = redis.call('ZSCORE', set, id)
  if fence ~= '' then
    if not score or tonumber(score) ~= tonumber(fence) then
      return is_so(score, key, sleep_until, remove) and 2 or 0
    end
  elseif not score and redis.call('EXISTS', key) == 0 then
    return 0
  end
  if remove ~= '' then
    redis.call('DEL', key)
    redis.call('ZREM', set, id)
    return 1
  end
  if auto_remove ~= '' then
    redis.call('HSET', key, 'auto_remove', auto_remove)
  end
  if sleep_until == 'null' then
    redis.call('ZREM', set, id)
  elseif sleep_until ~= '' then
    redis.call('ZADD', set, sleep_until, id)
  end
  return 1
end
local answers = {}
for i = 2, #ARGV, 5 do
  answers[#answers + 1] = finish(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
return answers
