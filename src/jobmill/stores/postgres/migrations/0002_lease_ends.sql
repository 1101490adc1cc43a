-- A claim that finds nothing returns when the first lease ends, and a job names the worker whose lease has ended.

-- install claim
