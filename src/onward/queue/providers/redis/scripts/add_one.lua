-- Add the most common job, with neither delay nor priority nor an end to its life. ARGV: its id, its record.
-- Returns 0 when the id is already there.
if redis.call('HSETNX', jobs, ARGV[1], ARGV[2]) == 0 then
  return 0
end
local answer = redis.pcall('RPUSH', waiting, ARGV[1])
if type(answer) == 'table' then
  redis.call('HDEL', jobs, ARGV[1])
  return answer
end
if redis.pcall('LLEN', wake) == 0 then
  redis.call('RPUSH', wake, 1)
end
return 1
