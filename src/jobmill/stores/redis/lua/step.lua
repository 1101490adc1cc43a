-- step: stores a step of a running job, under its lease. ask: id, token, number, step (JSON). Returns 1, or 0 if the lease is lost.
--- include short_request
--- include lease
--- include job_id

call('DEL', NOTHING)
local id = resolve(ask.id)
if not holds(call('MGET', job_key(id) .. ':lock')[1], ask.token) or call('EXISTS', job_key(id)) == 0 then
  return 0
end
call('HSETNX', job_key(id), 'jms:' .. string.format('%.0f', ask.number), ask.step)
return 1
