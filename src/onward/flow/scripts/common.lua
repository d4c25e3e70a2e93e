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
local function line_key(stage, group) return 'line:' .. flow.tag .. stage .. ':' .. group end
local function job_key(id) return 'job:' .. flow.name .. ':' .. id end
local function children_key(id) return 'children:' .. flow.name .. ':' .. id end
local function index_key(attribute, value) return 'index:' .. flow.name .. ':' .. attribute .. ':' .. value end
local function ended_key(failed) return (failed and 'failed:' or 'done:') .. flow.name end

-- Milliseconds by the clock of the server: there is one, whatever the clocks of the workers say.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Microseconds that no two callers share, also within one script: whose turn it is where jobs wait in a line.
local last_turn = time[1] * 1000000 + time[2]
local function next_turn()
  last_turn = last_turn + 1
  return string.format('%.0f', last_turn)
end

-- The jobs that this script ends, for whoever called it to tell: rows of id, status, stage, reason, message, correlation id.
local ended = {}

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

-- Wake a worker of a stage that is taken from by script. More entries than `ready` jobs would wake workers in vain.
local function wake(stage, ready)
  local key = queue_key(stage, 'wake')
  if redis.call('LLEN', key) < ready then
    redis.call('RPUSH', key, 1)
    redis.call('PEXPIRE', key, 60000)
  end
end

-- Put a job where workers find it. `first`: before all others, because it was first already.
local function make_ready(id, stage, first)
  local settings = flow.stages[stage] or {}
  local ready
  if settings.prioritised then
    local waiting = queue_key(stage, 'prioritised')
    local priority = tonumber(redis.call('HGET', job_key(id), 'job-priority') or 0)
    -- The higher number is the more urgent; within a priority, first come, first served.
    redis.call('ZADD', waiting, (1000 - priority) * 2 ^ 42 + (first and 0 or now), id)
    ready = redis.call('ZCARD', waiting)
  else
    -- Who comes back keeps the turn it had.
    if settings.rate and not first then redis.call('HSET', job_key(id), 'turn', next_turn()) end
    ready = redis.call(first and 'LPUSH' or 'RPUSH', queue_key(stage, 'waiting'), id)
  end
  if settings.prioritised or settings.rate then wake(stage, ready) end
end

-- For the rate of a stage: a job of a group begins now.
local function note_start(stage, group)
  local rate, starts = flow.stages[stage].rate, limit_key(stage, group)
  redis.call('LPUSH', starts, now)
  redis.call('LTRIM', starts, 0, rate.limit - 1)
  redis.call('PEXPIRE', starts, rate.per)
end

-- When the rate of a stage lets the next job of a group begin.
local function free_at(stage, group)
  local rate = flow.stages[stage].rate
  local oldest = tonumber(redis.call('LINDEX', limit_key(stage, group), rate.limit - 1))
  return oldest and oldest + rate.per or now
end

-- How many jobs wait at a stage, those included that its rate puts off.
local function count_waiting(stage)
  return redis.call('LLEN', queue_key(stage, 'waiting')) + redis.call('ZCARD', queue_key(stage, 'prioritised'))
    + redis.call('ZCARD', queue_key(stage, 'limited'))
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

-- A worker says it again when the first reply was lost on the way; by then the job may be far ahead, so claim and answer
-- are noted for each stage.
local function note_settled(id, stage, claim, answer)
  redis.call('HSET', job_key(id), 'settled-claim:' .. stage, claim .. ' ' .. answer)
end

local function note_ended(id)
  local failed, done_at, failed_at, reason, message, correlation = unpack(redis.call('HMGET', job_key(id),
    'failed', 'completed-queue', 'failedQueue', 'failed-reason', 'failedErrorMsg', 'correlation-id'))
  if failed then
    ended[#ended + 1] = {id, 'failed', failed_at or '', reason or '', message or '', correlation or ''}
  else
    ended[#ended + 1] = {id, 'done', done_at or '', '', '', correlation or ''}
  end
end

-- What the first answer was; or 'lost', because somebody else has the job, or nobody.
local function repeated(id, stage, claim)
  local noted = redis.call('HGET', job_key(id), 'settled-claim:' .. stage) or ''
  if string.sub(noted, 1, #claim + 1) ~= claim .. ' ' then return {'lost', ended} end
  -- Parents that ended in the same moment did so because of it.
  local first_end
  local parent, finished = unpack(redis.call('HMGET', job_key(id), 'parent-id', 'finished-at'))
  while id and finished and finished == (first_end or finished) do
    first_end = finished
    note_ended(id)
    id = parent
    if id then parent, finished = unpack(redis.call('HMGET', job_key(id), 'parent-id', 'finished-at')) end
  end
  return {string.sub(noted, #claim + 2), ended}
end

-- Take a job out of a worker's hands.
local function leave(id, stage)
  redis.call('LREM', queue_key(stage, 'processing'), 1, id)
  redis.call('HDEL', queue_key(stage, 'unlocked'), id)
  redis.call('HDEL', job_key(id), 'held-by')
  redis.call('DEL', lock_key(stage, id))
end

local finish

local function fail(id, stage, message, reason)
  redis.call('HSET', job_key(id), 'failed', 'true', 'failedQueue', stage, 'failedErrorMsg', message, 'failed-reason', reason)
  finish(id, true)
end

-- Forget the children that a job waits for.
local function unpark(id)
  local stage = redis.call('HGET', job_key(id), 'current-queue')
  if stage then redis.call('SREM', queue_key(stage, 'parked'), id) end
  redis.call('DEL', children_key(id))
  redis.call('HDEL', job_key(id), 'open-children', 'child-count', 'collect-as', 'next-queue')
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

local function is_child_of(parent, number, child)
  return redis.call('HGET', children_key(parent), 'id:' .. number) == child
end

-- The first child that fails fails its parent. What the others return is kept: the failed one may be retried.
local function child_ended(parent, number, child, failed, result)
  if not is_child_of(parent, number, child) then return end
  local children, key = children_key(parent), job_key(parent)
  if not failed then
    redis.call('HSET', children, 'result:' .. number, result)
    if redis.call('HINCRBY', key, 'open-children', -1) == 0 then join(parent) end
  elseif redis.call('HINCRBY', children, 'failed-count', 1) == 1 then
    local stage = redis.call('HGET', key, 'current-queue')
    local message = redis.call('HGET', job_key(child), 'failedErrorMsg') or 'deleted'
    redis.call('SREM', queue_key(stage, 'parked'), parent)
    fail(parent, stage, 'child ' .. child .. ' failed: ' .. message, 'child')
    redis.call('PEXPIREAT', children, now + flow.keep_failed.age)
  end
end

-- Everything about a job that has ended, except its place in the list of those.
local function forget(id)
  for attribute in pairs(flow.indexed) do
    local value = redis.call('HGET', job_key(id), attribute)
    if value then unindex(id, attribute, value) end
  end
  redis.call('DEL', job_key(id), children_key(id))
end

-- Of jobs that have ended so many are kept, the oldest go first; a hundred at once, should there suddenly be too many.
local function keep_newest(failed)
  local key, most = ended_key(failed), (failed and flow.keep_failed or flow.keep).count
  for _ = 1, math.min(redis.call('ZCARD', key) - most, 100) do
    forget(redis.call('ZPOPMIN', key)[1])
  end
end

-- A job has ended: expiry owns its keys from now on.
finish = function(id, failed, result)
  local key, expires = job_key(id), now + (failed and flow.keep_failed or flow.keep).age
  redis.call('HSET', key, 'done', 'true', 'finished-at', now)
  redis.call('HDEL', key, 'current-queue', 'held-by')
  redis.call('ZADD', ended_key(failed), expires, id)
  expire_with_last(ended_key(failed))
  index_all(id, expires)
  note_ended(id)
  local parent, number = unpack(redis.call('HMGET', key, 'parent-id', 'child-number'))
  if parent then child_ended(parent, number, id, failed, result or 'null') end
  -- Last: a job that is not kept at all is gone with this, and was needed until now.
  redis.call('PEXPIREAT', key, expires)
  keep_newest(failed)
end
