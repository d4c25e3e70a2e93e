-- Add the most common job, with neither delay nor priority nor an end to its life. ARGV: its id, its record.
-- Returns 0 when the id is already there.
if redis.call('HSETNX', jobs, ARGV[1], ARGV[2]) == 0 then
  return 0
end
redis.call('RPUSH', waiting, ARGV[1])
if redis.call('LLEN', wake) == 0 then
  redis.call('RPUSH', wake, 1)
end
return 1
