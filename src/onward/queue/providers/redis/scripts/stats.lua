-- How many jobs wait, are delayed, run, have completed, have failed; and whether the queue is paused.
return {
  redis.call('LLEN', waiting) + redis.call('ZCARD', urgent),
  redis.call('ZCARD', delayed),
  redis.call('ZCARD', active),
  tonumber(redis.call('HGET', meta, 'completed') or 0),
  redis.call('ZCARD', failed),
  redis.call('HEXISTS', meta, 'paused'),
}
