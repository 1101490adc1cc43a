-- each: the same reading commands on many queues of one slot. ask: queues [what their keys begin with], commands [[command,
-- end of the key, argument...]]. Returns: for each queue, the reply to each command.
--- include short_request

local replies = {}
for i, queue in ipairs(ask.queues) do
  local own = {}
  for k, command in ipairs(ask.commands) do
    own[k] = call(command[1], queue .. command[2], unpack(command, 3))
  end
  replies[i] = own
end
return replies
