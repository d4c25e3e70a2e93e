-- Keep how far a handler has come. ARGV: the id, its lock token, what is kept.
if redis.call('HGET', locks, ARGV[1]) == ARGV[2] then
  redis.call('HSET', progress, ARGV[1], ARGV[3])
  return 1
end
return 0
