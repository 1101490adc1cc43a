-- BullMQ's id of a job: "repeat:<scheduler>" is the present run of that scheduler, or its last one. A list holds the bytes
-- of an id that is no text.
local function resolve(id)
  if type(id) == 'table' then
    return string.char(unpack(id))
  end
  local sid = string.match(id, '^repeat:([^:]*)$')
  if not sid then
    return id
  end
  local slot = call('ZSCORE', Q .. ':repeat', sid) or call('HGET', Q .. ':jobmill:recurring', sid)
  return slot and 'repeat:' .. sid .. ':' .. slot or id
end
