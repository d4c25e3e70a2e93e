-- Send hints, and keep how many listeners those about ready jobs may wake.
-- KEYS[1]: the budget of this announcement. ARGV: the channel, the milliseconds a budget lives, the number of payloads,
-- the payloads, then a type and its count by turns.
local payloads = tonumber(ARGV[3])
for i = 4 + payloads, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for i = 4, 3 + payloads do
  redis.call('PUBLISH', ARGV[1], ARGV[i])
end
