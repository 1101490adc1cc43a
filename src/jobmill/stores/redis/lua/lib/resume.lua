-- Ends a pause. Jobs that version 5 of BullMQ left in a list of their own go to the front, in their order.
local function resume()
  call('HDEL', Q .. ':meta', 'paused', 'jmpause')
  paused = false
  if call('EXISTS', Q .. ':paused') == 1 and call('EXISTS', Q .. ':wait') == 0 then
    call('RENAME', Q .. ':paused', Q .. ':wait')
  end
  while call('LMOVE', Q .. ':paused', Q .. ':wait', 'LEFT', 'RIGHT') do
  end
  call('XADD', Q .. ':events', '*', 'event', 'resumed')
end
