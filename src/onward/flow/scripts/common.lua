-- What every script begins with: the names of the keys, and the steps that several scripts take.
-- ARGV[1]: the flow as JSON, made by keys.py. On a cluster every name carries the flow's hash tag, so that all keys of a
-- flow are in one slot; therefore scripts may put names together themselves.
local flow = cjson.decode(ARGV[1])

-- While a cluster moves the slot, some keys are here and others there. Then looking for a key that is nowhere raises an
-- error, now, before anything was changed.
if flow.tag ~= '' then redis.call('EXISTS', 'nowhere:' .. flow.name) end

local function queue_key(stage, part) return 'queue:' .. flow.tag .. stage .. ':' .. part end
local function lock_key(stage, id) return 'lock:' .. flow.tag .. stage .. ':' .. id end
local function limit_key(stage, group) return 'limit:' .. flow.tag .. stage .. ':' .. group end
local function job_key(id) return 'job:' .. flow.name .. ':' .. id end
local function children_key(id) return 'children:' .. flow.name .. ':' .. id end
local function index_key(attribute, value) return 'index:' .. flow.name .. ':' .. attribute .. ':' .. value end
local function ended_key(failed) return (failed and 'failed:' or 'done:') .. flow.name end

-- Milliseconds by the clock of the server: there is one, whatever the clocks of the workers say.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Numbers of a sorted set are when an entry's job expires, and infinite while it lives: the set goes with its last entry.
local function expire_with_last(key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if last == 'inf' then
    redis.call('PERSIST', key)
  elseif last then
    redis.call('PEXPIREAT', key, string.format('%.0f', last))
  end
end

local function index(id, attribute, value, expires)
  local key = index_key(attribute, value)
  redis.call('ZADD', key, expires, id)
  expire_with_last(key)
end

local function unindex(id, attribute, value)
  local key = index_key(attribute, value)
  redis.call('ZREM', key, id)
  expire_with_last(key)
end

local function index_all(id, expires)
  for attribute in pairs(flow.indexed) do
    local value = redis.call('HGET', job_key(id), attribute)
    if value then index(id, attribute, value, expires) end
  end
end

local function save(id, attributes)
  for attribute, value in pairs(attributes) do
    if flow.indexed[attribute] then
      local old = redis.call('HGET', job_key(id), attribute)
      if old and old ~= value then unindex(id, attribute, old) end
      index(id, attribute, value, '+inf')
    end
    redis.call('HSET', job_key(id), attribute, value)
  end
end

-- Put a job where workers find it. `first`: before all others, because it was first already.
local function make_ready(id, stage, first)
  local settings = flow.stages[stage] or {}
  if settings.prioritised then
    local waiting, wake = queue_key(stage, 'prioritised'), queue_key(stage, 'wake')
    local priority = tonumber(redis.call('HGET', job_key(id), 'job-priority') or 0)
    -- The higher number is the more urgent; within a priority, first come, first served.
    redis.call('ZADD', waiting, (1000 - priority) * 2 ^ 42 + (first and 0 or now), id)
    if redis.call('LLEN', wake) < redis.call('ZCARD', waiting) then
      redis.call('RPUSH', wake, 1)
      redis.call('PEXPIRE', wake, 60000)
    end
  else
    redis.call(first and 'LPUSH' or 'RPUSH', queue_key(stage, 'waiting'), id)
  end
end

-- Let a job enter a stage: at once, after `delay` milliseconds, or (nil) after the delay that the stage asks for.
local function enqueue(id, stage, delay)
  delay = delay or (flow.stages[stage] or {}).delay or 0
  redis.call('HSET', job_key(id), 'current-queue', stage)
  if delay > 0 then
    redis.call('ZADD', queue_key(stage, 'delayed'), now + delay, id)
  else
    make_ready(id, stage)
  end
end

-- A new job: {id, stage, attributes, facts, delay}.
local function create(new)
  redis.call('HSET', job_key(new.id), 'created-at', now)
  for fact, value in pairs(new.facts) do
    redis.call('HSET', job_key(new.id), fact, value)
  end
  save(new.id, new.attributes)
  enqueue(new.id, new.stage, new.delay)
end

-- Whether this claim, and no later one, has the job.
local function holds(stage, id, worker, claim)
  return redis.call('GET', lock_key(stage, id)) == worker
    and redis.call('HGET', job_key(id), 'claim-number') == claim
end

-- A worker says it again when the first reply was lost on the way; by then the job may be far ahead, so a claim is
-- noted for each stage.
local function note_settled(id, stage, claim)
  redis.call('HSET', job_key(id), 'settled-claim:' .. stage, claim)
end

local function is_repeated(id, stage, claim)
  return redis.call('HGET', job_key(id), 'settled-claim:' .. stage) == claim
end

-- Take a job out of a worker's hands.
local function leave(id, stage)
  redis.call('LREM', queue_key(stage, 'processing'), 1, id)
  redis.call('HDEL', queue_key(stage, 'unlocked'), id)
  redis.call('HDEL', job_key(id), 'held-by')
  redis.call('DEL', lock_key(stage, id))
end

local finish

local function fail(id, stage, message)
  redis.call('HSET', job_key(id), 'failed', 'true', 'failedQueue', stage, 'failedErrorMsg', message)
  finish(id, true)
end

-- Forget that a job waits for children.
local function unpark(id)
  local stage = redis.call('HGET', job_key(id), 'current-queue')
  if stage then redis.call('SREM', queue_key(stage, 'parked'), id) end
  redis.call('DEL', children_key(id))
  redis.call('HDEL', job_key(id), 'open-children', 'child-count', 'collect-as', 'next-queue')
  return stage
end

-- All children have ended: their results become an attribute, in the order of the children, and the job goes on.
local function join(id)
  local count, attribute, next_stage =
    unpack(redis.call('HMGET', job_key(id), 'child-count', 'collect-as', 'next-queue'))
  local results = {}
  for number = 1, tonumber(count) do
    results[number] = redis.call('HGET', children_key(id), 'result:' .. number) or 'null'
  end
  local collected = '[' .. table.concat(results, ',') .. ']'
  unpark(id)
  if attribute ~= '' then save(id, {[attribute] = collected}) end
  if next_stage ~= '' then
    enqueue(id, next_stage)
  else
    finish(id, false, collected)
  end
end

local function child_ended(parent, number, child, failed, result)
  if redis.call('HEXISTS', job_key(parent), 'open-children') == 0 then return end
  if failed then
    local message = redis.call('HGET', job_key(child), 'failedErrorMsg') or 'deleted'
    fail(parent, unpark(parent), 'child ' .. child .. ' failed: ' .. message)
  else
    redis.call('HSET', children_key(parent), 'result:' .. number, result)
    if redis.call('HINCRBY', job_key(parent), 'open-children', -1) == 0 then join(parent) end
  end
end

-- A job has ended: expiry owns its keys from now on.
finish = function(id, failed, result)
  local key, expires = job_key(id), now + (failed and flow.keep_failed or flow.keep)
  redis.call('HSET', key, 'done', 'true', 'finished-at', now)
  redis.call('HDEL', key, 'current-queue', 'held-by')
  redis.call('ZADD', ended_key(failed), expires, id)
  expire_with_last(ended_key(failed))
  index_all(id, expires)
  local parent, number = unpack(redis.call('HMGET', key, 'parent-id', 'child-number'))
  if parent then child_ended(parent, number, id, failed, result or 'null') end
  -- Last: a job that is not kept at all is gone with this, and was needed until now.
  redis.call('PEXPIREAT', key, expires)
end

-- After an error or a worker's timeout: again, as long as the stage allows it; then the job has failed.
local function retry_or_fail(id, stage, message, permanent)
  local settings = flow.stages[stage] or {}
  local retries = tonumber(redis.call('HGET', job_key(id), 'retry-count') or 0)
  if permanent or retries >= (settings.max_retries or 0) then
    fail(id, stage, message)
    return 'failed'
  end
  redis.call('HSET', job_key(id), 'retry-count', retries + 1, 'last-error', message)
  local delay = math.min((settings.backoff or 0) * (settings.backoff_factor or 1) ^ retries, settings.backoff_most or 0)
  enqueue(id, stage, math.floor(delay))
  return 'retried'
end
