-- Hold jobs longer. ARGV: the length of a lease, who asks, then id and lock token of every job. Returns the ids that are
-- lost.
local lost = {}
hear_of(ARGV[2])
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  if redis.call('HGET', locks, id) == ARGV[i + 1] then
    redis.call('ZADD', active, now + ARGV[1], id)
  else
    lost[#lost + 1] = id
  end
end
return lost
