-- How many jobs wait, are delayed, run, have completed, have failed; whether the queue is paused; how many workers were
-- heard of lately. ARGV: how long ago that is.
return {
  redis.call('LLEN', waiting) + redis.call('ZCARD', urgent),
  redis.call('ZCARD', delayed),
  redis.call('ZCARD', active),
  tonumber(redis.call('HGET', meta, 'completed') or 0),
  redis.call('ZCARD', failed),
  redis.call('HEXISTS', meta, 'paused'),
  redis.call('ZCOUNT', workers, now - ARGV[1], '+inf'),
}
