-- An id of the port within its queue: "repeat:<scheduler>" means the present run of that scheduler, or else its last one.
local function resolve(id)
  local sid = string.match(id, '^repeat:([^:]*)$')
  if not sid then
    return id
  end
  local slot = call('ZSCORE', Q .. ':repeat', sid) or call('HGET', Q .. ':jobmill:recurring', sid)
  return slot and 'repeat:' .. sid .. ':' .. slot or id
end
