-- Put a failed job back into the stage it failed in. ARGV[2]: the job id.
-- Returns the stage; or '' when there is no such job, or it has not failed.
local id = ARGV[2]
local key = job_key(id)
local failed, stage = unpack(redis.call('HMGET', key, 'failed', 'failedQueue'))
if failed ~= 'true' then return '' end
redis.call('PERSIST', key)
redis.call('HDEL', key, 'done', 'failed', 'failedQueue', 'failedErrorMsg', 'finished-at', 'retry-count', 'last-error')
redis.call('ZREM', ended_key(true), id)
expire_with_last(ended_key(true))
index_all(id, '+inf')
enqueue(id, stage, 0)
return stage
