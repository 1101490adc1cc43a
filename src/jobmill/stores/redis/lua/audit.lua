-- audit: adds entries to the audit log, each once, and removes those that are too old. KEYS[1]: what all keys here begin with.
-- ask: entries [[id, entry (JSON)]], kept: how long, in ms.
--- include short_request

local LOG, IDS = Q .. ':audit', Q .. ':audit-ids'
local old = call('XRANGE', LOG, '-', string.format('%.0f', now - ask.kept), 'COUNT', 500)
for _, entry in ipairs(old) do
  call('XDEL', LOG, entry[1])
  call('HDEL', IDS, entry[2][2])
end
-- The numbers of entries grow, even where the clock was set back.
local last = call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
local ms, n = string.match(last and last[1] or '0-0', '(%d+)-(%d+)')
ms, n = tonumber(ms), tonumber(n)
for _, entry in ipairs(ask.entries) do
  if call('HSETNX', IDS, entry[1], '1') == 1 then
    ms, n = math.max(ms, now), ms < now and 0 or n + 1
    call('XADD', LOG, string.format('%.0f-%d', ms, n), 'id', entry[1], 'entry', entry[2])
  end
end
return #old
