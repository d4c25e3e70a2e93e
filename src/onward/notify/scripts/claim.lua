-- Take from the budget of an announcement. KEYS[1]: the budget. ARGV: a type and the number wanted by turns.
-- Returns how many are granted, in the same order; nothing once the budget has run out or expired.
local granted = {}
for i = 1, #ARGV, 2 do
  local left = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  local mine = math.min(left, tonumber(ARGV[i + 1]))
  if mine > 0 then
    redis.call('HINCRBY', KEYS[1], ARGV[i], -mine)
  end
  granted[#granted + 1] = mine
end
return granted
