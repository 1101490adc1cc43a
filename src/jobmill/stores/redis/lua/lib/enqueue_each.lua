-- Enqueues all jobs of the request, one by one.
local receipts = {}
for i, job in ipairs(jobs) do
  local how, id = enqueue(job, last - #jobs + i)
  receipts[i] = {how, id, is_ours(how, id)}
end
set_markers()
