-- Where every job is, at one moment. ARGV[2]: how many jobs to name per place at most.
-- Returns rows of stage ('' for jobs that have ended), place, how many are there, and by turns an id and: who holds the
-- lock ('processing'), when it is due ('delayed') or expires ('done', 'failed'), else ''.
local most = tonumber(ARGV[2]) - 1
local rows = {}

local function add(stage, place, total, named)
  if total > 0 then rows[#rows + 1] = {stage, place, total, named} end
end

local function plain(ids, detail)
  local named = {}
  for _, id in ipairs(ids) do
    named[#named + 1] = id
    named[#named + 1] = detail and redis.call('GET', lock_key(detail, id)) or ''
  end
  return named
end

local function list(stage, place, key, detail)
  add(stage, place, redis.call('LLEN', key), most < 0 and {} or plain(redis.call('LRANGE', key, 0, most), detail))
end

local function sorted(stage, place, key, with_scores)
  if most < 0 then
    add(stage, place, redis.call('ZCARD', key), {})
  elseif with_scores then
    add(stage, place, redis.call('ZCARD', key), redis.call('ZRANGE', key, 0, most, 'WITHSCORES'))
  else
    add(stage, place, redis.call('ZCARD', key), plain(redis.call('ZRANGE', key, 0, most)))
  end
end

for stage in pairs(flow.stages) do
  sorted(stage, 'waiting', queue_key(stage, 'limited'))
  list(stage, 'waiting', queue_key(stage, 'waiting'))
  sorted(stage, 'waiting', queue_key(stage, 'prioritised'))
  sorted(stage, 'delayed', queue_key(stage, 'delayed'), true)
  list(stage, 'processing', queue_key(stage, 'processing'), stage)
  local parked = redis.call('SMEMBERS', queue_key(stage, 'parked'))
  local named = {}
  for i = 1, math.min(#parked, most + 1) do named[i] = parked[i] end
  add(stage, 'parked', #parked, plain(named))
end
for _, failed in ipairs({false, true}) do
  redis.call('ZREMRANGEBYSCORE', ended_key(failed), '-inf', now)
  sorted('', failed and 'failed' or 'done', ended_key(failed), true)
end
return rows
