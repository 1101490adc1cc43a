-- enqueue_by_policy: as enqueue, where jobs say what happens if their unique key is taken. Not in enqueue, where the functions that
-- only these jobs need would take time in each call.
-- ask: as for enqueue, and texts: see flows.lua; special has {taken} too: see policy.lua.
-- Returns: the answer of enqueue, and the ids in the port of the jobs that were cancelled.
--- include request
--- include events
--- include waiting
--- include repair
--- include state
--- include add
--- include schedulers
--- include flows
--- include retention
--- include enqueue
--- include policy

trim_events()
local jobs = ask.jobs
local last = call('INCRBY', Q .. ':id', #jobs)
--- include enqueue_each
return {receipts, cancelled}
