-- Lock a job that was moved to the processing list, and read what its stage asks for.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 milliseconds the lock lives, 6… attributes to read.
-- Returns 'claimed' with the number of this claim, retries and stalls so far, correlation id, whether it is a child,
-- attributes; or why not: 'held' by another worker, 'moved' elsewhere, or 'missing' altogether.
local stage, id, worker, lives = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key, lock, processing = job_key(id), lock_key(stage, id), queue_key(stage, 'processing')

-- The handler begins now, a moment later than the job was taken: it is this moment that its rate is about. Whether it
-- may: a worker that was so slow that its turn passed has to wait, if others have begun meanwhile.
local function may_begin()
  local at, group = unpack(redis.call('HMGET', key, 'taken-at', 'taken-from'))
  if not at then return true end
  redis.call('HDEL', key, 'taken-at', 'taken-from')
  if redis.call('LREM', limit_key(stage, group), 1, at) == 0 and free_at(stage, group) > now then return false end
  note_start(stage, group)
  return true
end

local holder = redis.call('GET', lock)
if holder and holder ~= worker then return {'held'} end
if not redis.call('LPOS', processing, id) then return {'moved'} end
if redis.call('EXISTS', key) == 0 then
  leave(id, stage)
  return {'missing'}
end
if not holder and flow.stages[stage].rate and not may_begin() then
  leave(id, stage)
  make_ready(id, stage, true)
  return {'moved'}
end
redis.call('SET', lock, worker, 'PX', lives)
-- Asked again by its holder, because the first answer was lost: that claim stands.
if not holder then
  redis.call('HDEL', queue_key(stage, 'unlocked'), id)
  redis.call('HSET', key, 'held-by', worker)
  redis.call('HINCRBY', key, 'claim-number', 1)
end
local claim, retries, stalls, correlation, parent =
  unpack(redis.call('HMGET', key, 'claim-number', 'retry-count', 'stall-count', 'correlation-id', 'parent-id'))
local attributes = {}
for i = 6, #ARGV do attributes[#attributes + 1] = redis.call('HGET', key, ARGV[i]) end
return {'claimed', claim, retries or '0', stalls or '0', correlation or '', parent and '1' or '0', attributes}
