-- edges: which jobs the jobs of one slot wait for. ask: jobs [[what the keys of its queue begin with, id]]. Returns for each:
-- the field jmg, or the keys of the children of a flow that Node made.
--- include short_request

local replies = {}
for i, job in ipairs(ask.jobs) do
  Q = job[1]
  local key = job_key(job[2])
  local jmg = redis.pcall('HGET', key, 'jmg')
  if type(jmg) == 'string' then
    replies[i] = jmg
  else
    local found = {}
    for _, keys in ipairs({call('SMEMBERS', key .. ':dependencies'), call('HKEYS', key .. ':processed'),
      call('HKEYS', key .. ':failed'), call('ZRANGE', key .. ':unsuccessful', 0, -1)}) do
      for _, child in ipairs(keys) do
        found[#found + 1] = child
      end
    end
    replies[i] = found
  end
end
return replies
