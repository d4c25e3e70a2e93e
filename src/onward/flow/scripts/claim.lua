-- Lock a job that was moved to the processing list, and read what its stage asks for.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 milliseconds the lock lives, 6… attributes to read.
-- Returns 'claimed' with the number of this claim, retries so far, correlation id, whether it is a child, attributes;
-- or why not: 'held' by another worker, 'moved' elsewhere, 'missing' altogether, or 'limited' and put off.
local stage, id, worker, timeout = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key, lock, processing = job_key(id), lock_key(stage, id), queue_key(stage, 'processing')

-- Whether the stage's rate lets the job begin now; else it gets a place in the line of its group, and comes back then.
local function is_admitted(rate)
  local group = rate.group and redis.call('HGET', key, rate.group) or ''
  local starts = limit_key(stage, group)
  local planned = starts .. ':planned'
  local oldest = tonumber(redis.call('LINDEX', starts, rate.limit - 1))
  local last_planned = tonumber(redis.call('GET', planned)) or 0
  local in_line = redis.call('HGET', key, 'in-line-at') == stage
  local free_at = oldest and oldest + rate.per or now
  -- Who has no place in the line yet may not overtake those who have.
  if free_at <= now and (in_line or last_planned <= now) then
    redis.call('LPUSH', starts, now)
    redis.call('LTRIM', starts, 0, rate.limit - 1)
    redis.call('PEXPIRE', starts, rate.per)
    redis.call('HDEL', key, 'in-line-at')
    return true
  end
  local at = math.ceil(math.max(free_at, last_planned + rate.per / rate.limit))
  redis.call('SET', planned, string.format('%.0f', at), 'PX', at - now + 1)
  redis.call('HSET', key, 'in-line-at', stage)
  enqueue(id, stage, at - now)
  return false
end

local holder = redis.call('GET', lock)
if holder and holder ~= worker then return {'held'} end
if not redis.call('LPOS', processing, id) then return {'moved'} end
if redis.call('EXISTS', key) == 0 then
  leave(id, stage)
  return {'missing'}
end
-- Asked again by its holder, because the first answer was lost: the claim stands.
if not holder then
  redis.call('HDEL', queue_key(stage, 'unlocked'), id)
  local rate = flow.stages[stage].rate
  if rate then
    redis.call('LREM', processing, 1, id)
    if not is_admitted(rate) then return {'limited'} end
    redis.call('RPUSH', processing, id)
  end
  redis.call('SET', lock, worker, 'PX', timeout)
  redis.call('HSET', key, 'held-by', worker)
  redis.call('HINCRBY', key, 'claim-number', 1)
end
local claim, retries, correlation, parent =
  unpack(redis.call('HMGET', key, 'claim-number', 'retry-count', 'correlation-id', 'parent-id'))
local attributes = {}
for i = 6, #ARGV do attributes[#attributes + 1] = redis.call('HGET', key, ARGV[i]) end
return {'claimed', claim, retries or '0', correlation or '', parent and '1' or '0', attributes}
