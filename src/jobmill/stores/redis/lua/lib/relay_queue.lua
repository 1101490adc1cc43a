-- The queue of the relays of a queue: see relays.lua. On a cluster, it must be in the same slot. As in flows.py.
local function relays(queue)
  local prefix, name = string.match(queue, '^(.*):([^:]*)$')
  local tag = not string.find(prefix, '{', 1, true) and string.match(name, '{[^}]+}')
  return 'jobmill:' .. prefix .. ':relays' .. (tag and ':' .. tag or '')
end
