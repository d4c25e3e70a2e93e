-- Put a failed job back into the stage it failed in. ARGV: 2 the job id, 3 a token: asked again with it, nothing changes.
-- Its parent, if that failed through it, waits for it again, as soon as none of its children is failed.
-- Returns the stage; or '' when there is no such job, or it has not failed.
local function revive(id)
  local key = job_key(id)
  redis.call('PERSIST', key)
  redis.call('HDEL', key, 'done', 'failed', 'failedQueue', 'failedErrorMsg', 'failed-reason', 'finished-at',
    'retry-count', 'stall-count', 'last-error')
  redis.call('ZREM', ended_key(true), id)
  expire_with_last(ended_key(true))
  index_all(id, '+inf')
end

local function await_again(child)
  local parent, number = unpack(redis.call('HMGET', job_key(child), 'parent-id', 'child-number'))
  if not parent or not is_child_of(parent, number, child) then return end
  if redis.call('HINCRBY', children_key(parent), 'failed-count', -1) > 0 then return end
  local stage = redis.call('HGET', job_key(parent), 'failedQueue')
  revive(parent)
  redis.call('PERSIST', children_key(parent))
  redis.call('HSET', job_key(parent), 'current-queue', stage)
  redis.call('SADD', queue_key(stage, 'parked'), parent)
  await_again(parent)
end

local id, token = ARGV[2], ARGV[3]
local failed, stage, last = unpack(redis.call('HMGET', job_key(id), 'failed', 'failedQueue', 'retry-token'))
if last == token then return 'repeated' end
if failed ~= 'true' then return '' end
unpark(id)
revive(id)
redis.call('HSET', job_key(id), 'retry-token', token)
await_again(id)
enqueue(id, stage, 0)
return stage
