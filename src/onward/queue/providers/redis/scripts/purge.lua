-- Forget finished jobs that are older. ARGV: completed or failed, how old, how many at most. Returns how many it were.
local key = ARGV[1] == 'completed' and completed or failed
local gone = redis.call('ZRANGE', key, '-inf', now - ARGV[2], 'BYSCORE', 'LIMIT', 0, ARGV[3])
if #gone > 0 then
  redis.call('ZREM', key, unpack(gone))
  forget(gone)
end
return #gone
