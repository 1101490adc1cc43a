-- configure_lane: the settings of one lane. ask: lane, set {field: value in JSON}, clear [field].
-- Returns: the settings: JSON, whose values are texts with JSON; and whether the next call takes back more slots.
--- include request
--- include events
--- include lane_module

call('DEL', Q .. ':jobmill:nothing')
lanes_rule = lanes_rule or ''
lanes.begin()
local key, lane = Q .. ':jobmill:lanes:own', ask.lane
local own = decoded(call('HGET', key, lane) or '{}')
for field, value in pairs(ask.set) do
  own[field] = value
end
for _, field in ipairs(ask.clear) do
  own[field] = nil
end
if next(own) then
  call('HSET', key, lane, cjson.encode(own))
else
  call('HDEL', key, lane)
end
call(own.pause and 'SADD' or 'SREM', Q .. ':jobmill:lanes:paused', lane)
-- Jobs that Node has put off, for example, do not count as admitted.
local is_done = lanes.refresh({lane})
set_markers()
return {next(own) and cjson.encode(own) or '{}', is_done and 0 or 1}
