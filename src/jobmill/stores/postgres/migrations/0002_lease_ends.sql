-- A claim that finds nothing returns when the first lease ends.

-- install claim
