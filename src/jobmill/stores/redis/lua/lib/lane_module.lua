-- The functions for lanes. Calls for queues without lanes do not make them, and most exchanges need only those of lanes.lua.
lanes = (function()
--- include lanes
  local rest
  local function more(_, name)
    if not rest then
--- include lane_changes
      rest = {join = join, hold = hold, stand = stand, stands = stands, position_of = position_of, gone = gone, keep = keep,
        take_slot = take_slot, reprioritize = reprioritize, push_back_some = push_back_some, displace = displace,
        note_over = note_over, lose_slot = lose_slot, room_in_window = room_in_window, prune = prune, promote = promote,
        unblock = unblock, refresh = refresh, is_enough = is_enough, sweep = sweep, tick = tick, begin = begin}
    end
    return rest[name]
  end
  return setmetatable({fill_changed = fill_changed, advance = advance, next_ms = next_ms, is_astray = is_astray,
    limits_of = limits_of, note = note, free = free, slot_of = slot_of, read_slot = read_slot, slots_key = slots_key,
    begun_key = begun_key, bounds_of = bounds_of, count_slots = count_slots, held_key = held_key, id_of = id_of,
    position_in = position_in},
    {__index = more})
end)()
