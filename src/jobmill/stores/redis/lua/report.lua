-- report: progress and log lines of running jobs. ask: reports [{id, token, progress, data, lines, origin}], max_lines.
-- Returns: the positions of those whose lease is lost, from 0.
--- include request
--- include events
--- include lease
--- include job_id

call('DEL', NOTHING)
local lost = {}
trim_events()
for i, r in ipairs(ask.reports) do
  r.id = resolve(r.id)
  local key = job_key(r.id)
  if not holds(call('MGET', key .. ':lock')[1], r.token) or call('EXISTS', key) == 0 then
    lost[#lost + 1] = i - 1
  else
    local h = call('HMGET', key, 'name', 'atm', 'jme', 'jm', 'opts', 'jmt')
    if r.progress then
      call('HSET', key, 'progress', r.progress, 'jmu', now)
      event('progress', 'jobId', r.id, 'data', r.progress)
      feed_event('progress', r.id, h[1], (tonumber(h[3] or h[2]) or 0) + 1, r.data)
    end
    -- A key that is no list must not stop the other reports.
    if #r.lines > 0 and type(redis.pcall('RPUSH', key .. ':logs', unpack(r.lines))) == 'number' then
      local max_lines = h[4] and ask.max_lines or tonumber(decoded(h[5]).kl)
      if max_lines then
        call('LTRIM', key .. ':logs', -max_lines, -1)
      end
      -- BullMQ keeps lines without times. Ours are in the hash: log_lines.py has the format.
      local times = (h[6] and h[6] .. ' ' or '') .. (r.origin and r.origin .. ':0 ' or '')
        .. string.format('%.0f:%d', now, #r.lines)
      if #times > 28000 then
        times = string.match(string.sub(times, -24000), ' (.*)$')
      end
      call('HSET', key, 'jmt', times)
    end
  end
end
return lost
