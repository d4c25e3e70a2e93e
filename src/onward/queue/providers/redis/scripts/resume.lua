-- Workers get jobs again.
redis.call('HDEL', meta, 'paused')
wake_one()
return 1
