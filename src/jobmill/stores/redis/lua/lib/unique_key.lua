-- Whether a job may have the unique key of the request, or there is none.

local function ends_with(text, ending)
  return text and (text == ending or string.sub(text, -#ending - 1) == ' ' .. ending)
end

-- A scheduler's id has the key in another form: see ids.py.
local scheduler_key = ask.key and string.gsub(string.gsub(ask.key, '%%', '%%25'), ':', '%%3A')
local function may_match(id)
  if not ask.key then
    return true
  end
  local h = redis.pcall('HMGET', job_key(id), 'deid', 'rjk')
  return ends_with(h[1], ask.key) or ends_with(h[2], scheduler_key)
end
