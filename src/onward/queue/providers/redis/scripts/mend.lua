-- Move what is not ours out of the way. ARGV: what its name gets at the end.
-- Returns what was moved: the key, its type, and the type it should have had.
local moved = {}
for n, kind in ipairs(kinds) do
  local found = redis.pcall('TYPE', KEYS[n]).ok or 'none'
  if found ~= kind and found ~= 'none' then
    redis.call('RENAME', KEYS[n], KEYS[n] .. ARGV[1])
    moved[#moved + 1] = {KEYS[n], found, kind}
  end
end
return moved
