-- A filter by time is a range of scores. ask.scores: {set = {lowest, end: not included}}; each may be ''.

local function bounds(set)
  local range = ask.scores and ask.scores[set]
  if not range then
    return nil
  end
  return range[1] == '' and '-inf' or range[1], range[2] == '' and '+inf' or '(' .. range[2]
end

-- How many jobs of a sorted set come before its range.
local function outside(key, set, is_reversed)
  local range = ask.scores and ask.scores[set]
  if not range then
    return 0
  elseif is_reversed then
    return range[2] == '' and 0 or call('ZCOUNT', key, range[2], '+inf')
  end
  return range[1] == '' and 0 or call('ZCOUNT', key, '-inf', '(' .. range[1])
end
