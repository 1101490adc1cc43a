-- Why a job is in waiting-children: a person or a lane holds it (jmh), and its children do where they are not finished.
local function why_held(id)
  local key = job_key(id) .. ':dependencies'
  local pending = call('SCARD', key) - call('SISMEMBER', key, Q .. ':jobmill:hold')
  -- A job that must fail does not wait for others.
  return pending > 0 and call('HEXISTS', job_key(id), 'defa') == 0 and 'held jobs' or 'held'
end
